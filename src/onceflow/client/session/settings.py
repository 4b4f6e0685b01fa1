"""The settings of a session: its own few, and those of its consumer and its producer by Kafka's
names, each passed on to the client that it is for.

    SessionSettings.of({"group.id": "billing", "commit.interval.ms": 100}, topics=["orders"])

What would weaken exactly-once is refused, with both keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from onceflow.client.settings import (
    ConsumerSettings,
    NotAllowed,
    ProducerSettings,
    setting,
    unknown,
    whole_number,
    words,
)
from onceflow.errors import InvalidSetting

SEPARATOR: Final = "/"
ONLY_ONE: Final = "0"
"""The instance of a session that was given none."""
_EXACTLY_ONCE: Final = "delivery = 'exactly-once' (as every session)"
_REFUSED: Final[Mapping[str, str]] = {
    "delivery": "a session is exactly-once: leave it out",
    "transactional.id": "it is made of group.id and instance: leave it out",
    "transaction.two.phase.commit.enable": (
        "a session decides by itself when to commit: leave it out"
    ),
}


def topic_names(value: object) -> tuple[str, ...]:
    """Names in a list, or separated by commas."""
    given = value.split(",") if isinstance(value, str) else value
    if isinstance(given, list | tuple | set | frozenset):
        names = tuple(each.strip() for each in given if isinstance(each, str))
        if names and all(names) and len(names) == len(given):
            return names
    raise NotAllowed("a list of names, or names separated by commas")


def expression(value: object) -> str:
    """A regular expression, as text or compiled."""
    text = value.pattern if isinstance(value, re.Pattern) else value
    try:
        re.compile(words(text))
    except re.error as error:
        raise NotAllowed(f"a regular expression ({error})") from error
    return str(text)


def instance_name(value: object) -> str:
    """What tells one session of a group from the others."""
    name = words(value)
    if SEPARATOR in name:
        raise NotAllowed(f"a text without {SEPARATOR!r}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Made by `of`."""

    topics: tuple[str, ...] = setting(topic_names, ())
    pattern: str | None = setting(expression, None)
    """Reads all topics whose whole name matches, in place of `topics`."""
    instance: str | None = setting(instance_name, None)
    """What tells this session from the others of its group, also when it is started again. None:
    `group.instance.id`, else there is only one."""
    commit_interval_ms: int = setting(whole_number(0), 0)
    """For how long polls share one transaction. 0: each has its own."""
    commit_max_records: int = setting(whole_number(1), 10_000)
    """So many records are committed also before that."""
    dead_letter_topic: str | None = setting(words, None)
    consumer: Mapping[str, object]
    """As its consumer and its producer are made."""
    producer: Mapping[str, object]
    group_id: str
    transactional_id: str
    max_poll_records: int

    @classmethod
    def of(cls, settings: Mapping[str, object] | None = None, /, **named: object) -> Self:
        """From keys with dots or underscores; raises `InvalidSetting`."""
        given = _merged(settings or {}, named)
        _refuse(given)
        own = _own(given)
        shared = {key: value for key, value in given.items() if key not in own}
        consumer, producer = _shares(shared, own)
        reads = ConsumerSettings.of(consumer)
        if reads.group_id is None:
            raise InvalidSetting("group.id is not set: a session reads for a group; name it")
        name = SEPARATOR.join((reads.group_id, _instance(own, reads)))
        producer["transactional.id"] = name
        writes = ProducerSettings.of(producer)
        made = cls(
            **{key.replace(".", "_"): value for key, value in own.items()},
            consumer=consumer,
            producer=producer,
            group_id=reads.group_id,
            transactional_id=name,
            max_poll_records=reads.max_poll_records,
        )
        _check(made, reads, writes)
        return made


_OWN: Final = {
    each.name.replace("_", "."): each.metadata["read"]
    for each in fields(SessionSettings)
    if "read" in each.metadata
}
_CONSUMERS: Final = {each.name.replace("_", ".") for each in fields(ConsumerSettings)}
_PRODUCERS: Final = {each.name.replace("_", ".") for each in fields(ProducerSettings)}


def _merged(settings: Mapping[str, object], named: Mapping[str, object]) -> dict[str, object]:
    """All keys with dots; None stands for what is left out."""
    merged: dict[str, object] = {}
    for written, value in (*settings.items(), *named.items()):
        key = written.replace("_", ".")
        if key in merged:
            raise InvalidSetting(f"{key!r} is given twice; give it once")
        if value is not None:
            merged[key] = value
    return merged


def _refuse(given: Mapping[str, object]) -> None:
    for key, why in _REFUSED.items():
        if key in given:
            raise InvalidSetting(f"{key} = {given[key]!r}: {why}")


def _own(given: Mapping[str, object]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in given.keys() & _OWN.keys():
        try:
            found[key] = _OWN[key](given[key])
        except NotAllowed as error:
            told = f"{key} = {given[key]!r} is not allowed; it may be {error}"
            raise InvalidSetting(told) from error
    return found


def _shares(
    given: Mapping[str, object], own: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """The settings of the consumer, and those of the producer. Keys that neither knows may be other
    spellings of some that both do: they say so."""
    known = {*_OWN, *_CONSUMERS, *_PRODUCERS}
    consumer: dict[str, object] = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    producer: dict[str, object] = {}
    for key, value in given.items():
        is_anybodys = key not in known
        if is_anybodys and not key.startswith(("ssl.", "sasl.")):
            raise unknown(key, known)
        if is_anybodys or key in _CONSUMERS:
            consumer[key] = value
        if is_anybodys or key in _PRODUCERS:
            producer[key] = value
    return consumer, producer


def _instance(own: Mapping[str, Any], reads: ConsumerSettings) -> str:
    given, member = own.get("instance"), reads.group_instance_id
    if given is not None and member is not None and given != member:
        raise _contradiction(
            f"instance = {given!r}",
            f"group.instance.id = {member!r}",
            "both tell one member of the group from the others: give one of them",
        )
    if given is None and member is not None and SEPARATOR in member:
        raise InvalidSetting(
            f"group.instance.id = {member!r} cannot be the instance of a session: it may be a text "
            f"without {SEPARATOR!r}"
        )
    return given or member or ONLY_ONE


def _check(made: SessionSettings, reads: ConsumerSettings, writes: ProducerSettings) -> None:
    if bool(made.topics) == (made.pattern is not None):
        raise InvalidSetting("topics and pattern: give one of them, and not both")
    if reads.enable_auto_commit:
        raise _contradiction(
            "enable.auto.commit = true",
            _EXACTLY_ONCE,
            "offsets are committed in the transaction of their batch: leave enable.auto.commit out",
        )
    if not reads.read_committed:
        raise _contradiction(
            f"isolation.level = {reads.isolation_level!r}",
            _EXACTLY_ONCE,
            "work would be done on records that are aborted later: leave isolation.level out",
        )
    longest = writes.transaction_timeout_ms
    if made.commit_interval_ms >= longest:
        raise _contradiction(
            f"commit.interval.ms = {made.commit_interval_ms}",
            f"transaction.timeout.ms = {longest}",
            "the broker would abort every transaction before it is committed: make "
            "commit.interval.ms smaller",
        )


def _contradiction(one: str, other: str, advice: str) -> InvalidSetting:
    return InvalidSetting(f"{one} contradicts {other}: {advice}")
