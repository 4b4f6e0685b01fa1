"""The topics that an embedded broker has from its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onceflow.errors import InvalidSetting

_PATIENT: Final = {"socket.connection.setup.timeout.ms": 60_000}
"""The broker is there, however long a busy machine takes to load what its first answer needs."""


def checked_topics(topics: object) -> dict[str, int]:
    """By name, with the number of their partitions."""
    if topics is None:
        return {}
    rows = dict(topics) if isinstance(topics, Mapping) else None
    if rows is None or not all(
        isinstance(name, str) and type(count) is int for name, count in rows.items()
    ):
        raise InvalidSetting(
            f"topics is {topics!r}; pass names with their numbers of partitions, as in "
            "{'orders': 3}"
        )
    for name, count in rows.items():
        # The protocol has -1 for "as many as the broker likes": a topic that has them at a restart
        # would not have the number that was asked for.
        if count < 1:
            raise InvalidSetting(f"topics gives {name!r} {count} partitions; a topic has 1 or more")
    return rows


def checked_port(port: object) -> str:
    """As the setting `listen` has it."""
    if type(port) is not int or not 0 <= port <= 65_535:
        raise InvalidSetting(f"port is {port!r}; pass a whole number from 0 to 65535")
    return f"127.0.0.1:{port}"


def make_topics(bootstrap: str, topics: Mapping[str, int]) -> None:
    """Creates those that are not there; raises what a broker says to it, and `InvalidSetting` when
    one that is there has another number of partitions."""
    from onceflow.blocking import Admin

    with Admin(bootstrap, _PATIENT) as admin:
        known = {each.name: len(each.partitions) for each in admin.list_topics()}
        for name, count in topics.items():
            if name not in known:
                admin.create_topic(name, partitions=count)
            elif known[name] != count:
                raise InvalidSetting(
                    f"topic {name!r} is to have {count} partitions, and is there with {known[name]}"
                )
