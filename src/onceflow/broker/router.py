"""Which APIs are served, in which versions, and by whom.

A handler's module is loaded when its API is first asked for, so that a broker accepts connections
before it has read a thousand message classes. Most handlers see and give messages of the newest
version; the two hot ones read and write their own bytes, and any that has a `write` writes them.

Where older versions have another shape, a handler's module says up to which one
(`OLD_SHAPE_UNTIL`), and those come as messages of that one. Its `upgrade` and `downgrade` translate
between the two shapes; without them its `handle` takes and gives both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from onceflow.broker.requests import Answer, RequestContext
from onceflow.runtime import Part, message_library
from onceflow.wire import (
    MOST_ELEMENTS,
    ApiKey,
    decode,
    encode,
    message_class,
    prepare_writing,
    recast,
    response_tags,
)


class ServedVersions(NamedTuple):
    """The versions of an API that are served."""

    lowest: int
    highest: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest


SERVED: dict[ApiKey, ServedVersions] = {
    ApiKey.PRODUCE: ServedVersions(3, 13),
    ApiKey.FETCH: ServedVersions(4, 18),
    ApiKey.LIST_OFFSETS: ServedVersions(1, 11),
    ApiKey.METADATA: ServedVersions(0, 13),
    ApiKey.OFFSET_COMMIT: ServedVersions(2, 9),
    ApiKey.OFFSET_FETCH: ServedVersions(1, 9),
    ApiKey.FIND_COORDINATOR: ServedVersions(0, 6),
    ApiKey.JOIN_GROUP: ServedVersions(0, 9),
    ApiKey.HEARTBEAT: ServedVersions(0, 4),
    ApiKey.LEAVE_GROUP: ServedVersions(0, 5),
    ApiKey.SYNC_GROUP: ServedVersions(0, 5),
    ApiKey.DESCRIBE_GROUPS: ServedVersions(0, 6),
    ApiKey.LIST_GROUPS: ServedVersions(0, 5),
    ApiKey.API_VERSIONS: ServedVersions(0, 5),
    ApiKey.CREATE_TOPICS: ServedVersions(2, 7),
    ApiKey.DELETE_TOPICS: ServedVersions(1, 6),
    ApiKey.DELETE_RECORDS: ServedVersions(0, 2),
    ApiKey.INIT_PRODUCER_ID: ServedVersions(0, 6),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ServedVersions(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: ServedVersions(0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: ServedVersions(0, 4),
    ApiKey.END_TXN: ServedVersions(0, 5),
    ApiKey.WRITE_TXN_MARKERS: ServedVersions(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: ServedVersions(0, 6),
    ApiKey.DESCRIBE_CONFIGS: ServedVersions(1, 4),
    ApiKey.ALTER_CONFIGS: ServedVersions(0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: ServedVersions(1, 5),
    ApiKey.CREATE_PARTITIONS: ServedVersions(0, 3),
    ApiKey.DELETE_GROUPS: ServedVersions(0, 3),
    ApiKey.ELECT_LEADERS: ServedVersions(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ServedVersions(0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ServedVersions(0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ServedVersions(0, 0),
    ApiKey.OFFSET_DELETE: ServedVersions(0, 0),
    ApiKey.DESCRIBE_QUORUM: ServedVersions(0, 2),
    ApiKey.UPDATE_FEATURES: ServedVersions(0, 2),
    ApiKey.DESCRIBE_CLUSTER: ServedVersions(0, 2),
    ApiKey.DESCRIBE_PRODUCERS: ServedVersions(0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: ServedVersions(0, 0),
    ApiKey.LIST_TRANSACTIONS: ServedVersions(0, 2),
    ApiKey.LIST_CONFIG_RESOURCES: ServedVersions(0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ServedVersions(0, 0),
}
_HOT = {ApiKey.PRODUCE, ApiKey.FETCH}


API_KEYS = {int(key): key for key in SERVED}


class Route(NamedTuple):
    """The way of one API's requests in one version."""

    read: Callable[[memoryview, int], Any]
    handle: Callable[[Any, RequestContext, Any], Answer[Any]]
    write: Callable[[Any], Iterable[Part]]
    tags: bytes
    """What stands between an answer's correlation id and its body."""
    api_key: int
    """A plain number: the hash of an enum's member is a function call."""


_LOADED: dict[int, Route] = {}


def route(api_key: int, version: int) -> Route | None:
    """Loaded when first asked for; None for what is not served."""
    # By plain numbers: the hash of an enum's member is a function call.
    found = _LOADED.get(api_key << 16 | version)
    if found is None:
        key = API_KEYS.get(api_key)
        if key is not None and version in SERVED[key]:
            with message_library:
                found = _LOADED[api_key << 16 | version] = _load(key, version)
    return found


def _load(key: ApiKey, version: int) -> Route:
    module = import_module(f"onceflow.broker.handlers.{key.schema}")
    tags = response_tags(key, version)
    if key in _HOT:
        return Route(
            lambda buffer, at: module.read(buffer, at, version),
            module.handle,
            lambda answer: module.write(answer, version),
            tags,
            int(key),
        )
    return Route(
        _reading(module, key, version),
        module.handle,
        _writing(module, key, version),
        tags,
        int(key),
    )


def _reading(module: Any, key: ApiKey, version: int) -> Callable[[memoryview, int], Any]:
    sent = message_class(key, version, "request")
    read = partial(decode, sent, most_elements=MOST_ELEMENTS)
    if not _has_old_shape(module, version):
        newest = message_class(key, SERVED[key].highest, "request")
        return lambda buffer, at: recast(read(buffer, at), newest)
    older = message_class(key, module.OLD_SHAPE_UNTIL, "request")
    upgrade = getattr(module, "upgrade", None)
    if upgrade is None:
        return lambda buffer, at: recast(read(buffer, at), older)
    return lambda buffer, at: upgrade(recast(read(buffer, at), older))


def _writing(module: Any, key: ApiKey, version: int) -> Callable[[Any], Iterable[Part]]:
    write = getattr(module, "write", None)
    if write is not None:
        return lambda answer: write(answer, version)
    wanted = message_class(key, version, "response")
    prepare_writing(wanted)
    downgrade = getattr(module, "downgrade", None)
    if downgrade is not None and _has_old_shape(module, version):
        older = message_class(key, module.OLD_SHAPE_UNTIL, "response")
        return lambda answer: (encode(recast(downgrade(answer, older), wanted)),)
    return lambda answer: (encode(recast(answer, wanted)),)


def _has_old_shape(module: Any, version: int) -> bool:
    return version <= getattr(module, "OLD_SHAPE_UNTIL", -1)
