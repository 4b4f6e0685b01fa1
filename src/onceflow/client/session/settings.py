"""The settings of a session: its own few, and those of its consumer and its producer by Kafka's
names, each passed on to the client that it is for.

    SessionSettings.of({"group.id": "billing", "commit.interval.ms": 100}, topics=["orders"])

What would weaken exactly-once is refused, with both keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from onceflow.client.settings import ConsumerSettings, ProducerSettings, catalogue_of
from onceflow.errors import InvalidSetting
from onceflow.settings import (
    PATTERN,
    TEXT,
    Catalogue,
    Rule,
    SettingKind,
    broken_rules,
    contradiction,
    list_of,
    merged,
    setting,
    settings_of,
    whole_number,
)

SEPARATOR: Final = "/"
ONLY_ONE: Final = "0"
"""The instance of a session that was given none."""
_REFUSED: Final[Mapping[str, str]] = {
    "delivery": "a session is exactly-once: leave it out",
    "transactional.id": "it is made of group.id and instance: leave it out",
    "transaction.two.phase.commit.enable": (
        "a session decides by itself when to commit: leave it out"
    ),
}
_BY_SESSIONS: Final[Mapping[str, object]] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
}
"""Where sessions have another default than consumers."""


def _read_instance(value: object) -> str:
    name = TEXT.read(value)
    if SEPARATOR in name:
        raise ValueError(value)
    return str(name)


_INSTANCE: Final = SettingKind("string", f"a text without {SEPARATOR!r}", _read_instance)
_TOPICS: Final = list_of(TEXT, "a list of names, or names separated by commas")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Made by `of`."""

    topics: tuple[str, ...] = setting(_TOPICS, (), "The topics that are read.")
    pattern: str | None = setting(
        PATTERN, None, "Reads all topics whose whole name matches, in place of `topics`."
    )
    instance: str | None = setting(
        _INSTANCE,
        None,
        "What tells this session from the others of its group, also when it is started again.",
        unset="group.instance.id, else there is only one",
    )
    commit_interval_ms: int = setting(
        whole_number(0), 0, "For how long polls share one transaction; with 0 each has its own."
    )
    commit_max_records: int = setting(
        whole_number(1), 10_000, "So many records are committed also before that."
    )
    dead_letter_topic: str | None = setting(
        TEXT, None, "The topic for records that cannot be worked on."
    )
    consumer: Mapping[str, object]
    """As its consumer and its producer are made."""
    producer: Mapping[str, object]
    group_id: str
    transactional_id: str
    max_poll_records: int

    @classmethod
    def of(cls, settings: Mapping[str, object] | None = None, /, **named: object) -> Self:
        """From keys with dots or underscores; raises `InvalidSetting`."""
        own: dict[str, Any] = {}
        consumer, producer = dict(_BY_SESSIONS), dict[str, object]()
        for key, value in merged(_ALL, settings or {}, named).items():
            read = _ALL.read(key, value)
            if key in _OWN:
                own[_OWN[key].attribute] = read
            if key in _CONSUMERS:
                consumer[key] = value
            if key in _PRODUCERS:
                producer[key] = value
        reads = ConsumerSettings.of(consumer)
        if reads.group_id is None:
            raise InvalidSetting("group.id is not set: a session reads for a group; name it")
        name = SEPARATOR.join((reads.group_id, _instance(own.get("instance"), reads)))
        producer["transactional.id"] = name
        writes = ProducerSettings.of(producer)
        made = cls(
            **own,
            consumer=consumer,
            producer=producer,
            group_id=reads.group_id,
            transactional_id=name,
            max_poll_records=reads.max_poll_records,
        )
        _check(made, reads, writes)
        return made


_OWN: Final = settings_of(SessionSettings)
_CONSUMERS: Final = settings_of(ConsumerSettings)
_PRODUCERS: Final = settings_of(ProducerSettings)
_OF_CLIENTS: Final = catalogue_of(ProducerSettings)
_ALL: Final = Catalogue(
    {**_CONSUMERS, **_PRODUCERS, **_OWN}, _OF_CLIENTS.aliases, {**_OF_CLIENTS.refused, **_REFUSED}
)

_RULES: Final = (
    Rule(
        "instance",
        "group.instance.id",
        lambda one, other: None not in (one, other) and one != other,
        "both tell one member of the group from the others: give one of them",
    ),
    Rule(
        "enable.auto.commit",
        "delivery",
        lambda commits, _: commits,
        "offsets are committed in the transaction of their batch: leave enable.auto.commit out",
    ),
    Rule(
        "isolation.level",
        "delivery",
        lambda level, _: level != "read_committed",
        "work would be done on records that are aborted later: leave isolation.level out",
    ),
    Rule(
        "commit.interval.ms",
        "transaction.timeout.ms",
        lambda interval, longest: interval >= longest,
        "the broker would abort every transaction before it is committed: make "
        "commit.interval.ms smaller",
    ),
)


def _instance(given: str | None, reads: ConsumerSettings) -> str:
    member = reads.group_instance_id
    if given is None and member is not None and SEPARATOR in member:
        raise InvalidSetting(
            f"group.instance.id = {member!r} cannot be the instance of a session: it may be "
            f"{_INSTANCE.allowed}"
        )
    return given or member or ONLY_ONE


def _check(made: SessionSettings, reads: ConsumerSettings, writes: ProducerSettings) -> None:
    if bool(made.topics) == (made.pattern is not None):
        raise InvalidSetting("topics and pattern: give one of them, and not both")
    values = {
        "instance": made.instance,
        "group.instance.id": reads.group_instance_id,
        "enable.auto.commit": reads.enable_auto_commit,
        "isolation.level": reads.isolation_level,
        "commit.interval.ms": made.commit_interval_ms,
        "transaction.timeout.ms": writes.transaction_timeout_ms,
        "delivery": "exactly-once",
    }

    def described(name: str) -> str:
        why = " (as every session)" if name == "delivery" else ""
        return _ALL.settings[name].with_value(values[name]) + why

    for rule in broken_rules(_RULES, values):
        raise InvalidSetting(contradiction(described(rule.one), described(rule.other), rule.advice))
