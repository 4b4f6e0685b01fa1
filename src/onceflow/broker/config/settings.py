"""The table of the broker's settings: Kafka's names where Kafka has one, ours elsewhere.

A setting knows how its text is read, which values it allows and what to tell the user about it.
Its default is that of the field of `BrokerConfig` that it fills.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from onceflow.broker.config.topic_values import ConfigType

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}")


class ListenAddress(NamedTuple):
    """Where a broker listens, or where clients are to connect."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerSettingKind:
    """What a setting takes: in words for the user, from text, and as a check of a value."""

    allowed: str
    read: Callable[[str], object]
    """Raises ValueError for a text that is none of the kind."""
    allows: Callable[[object], bool]
    type: ConfigType = ConfigType.STRING
    """As DescribeConfigs tells it, which is as Kafka has it for its own settings."""
    is_verbatim: bool = False
    """Whether blanks around a text are part of it."""


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """One setting of the broker."""

    key: str
    kind: BrokerSettingKind
    documentation: str
    field: str
    """Of `BrokerConfig`."""

    def parse(self, text: str) -> object:
        """The value; ValueError where it is not allowed."""
        value = self.kind.read(text if self.kind.is_verbatim else text.strip())
        if not self.kind.allows(value):
            raise ValueError(text)
        return value


def parse_address(text: str) -> ListenAddress:
    """`HOST:PORT`, where an IPv6 host stands in brackets."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(text)
    if not colon or not host or any(letter.isspace() for letter in host):
        raise ValueError(text)
    return ListenAddress(host, _read_whole(port))


def _read_whole(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _read_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _read_path(text: str) -> Path:
    # A stray blank or line end in quotes must not put the data into another directory.
    if not text or text != text.strip() or "\0" in text:
        raise ValueError(text)
    return Path(text)


def _whole(lowest: int, highest: int, kind: ConfigType | None = None) -> BrokerSettingKind:
    return BrokerSettingKind(
        f"a whole number from {lowest} to {highest}",
        _read_whole,
        lambda value: type(value) is int and lowest <= value <= highest,
        kind or (ConfigType.INT if highest <= INT_MAX else ConfigType.LONG),
    )


def _address(lowest_port: int) -> BrokerSettingKind:
    return BrokerSettingKind(
        f"HOST:PORT (an IPv6 host in brackets) with a port from {lowest_port} to 65535",
        parse_address,
        lambda value: isinstance(value, ListenAddress) and lowest_port <= value.port <= 65535,
    )


def _choice(*choices: str) -> BrokerSettingKind:
    return BrokerSettingKind(f"one of {', '.join(choices)}", str, lambda value: value in choices)


_BOOLEAN: Final = BrokerSettingKind(
    "true or false", _read_boolean, lambda value: isinstance(value, bool), ConfigType.BOOLEAN
)
_PATH: Final = BrokerSettingKind(
    "the path of a directory, without blanks before or behind it",
    _read_path,
    lambda value: isinstance(value, Path),
    is_verbatim=True,
)
_COUNT: Final = _whole(1, INT_MAX)
_BYTES: Final = _whole(1, LONG_MAX)
_MS: Final = _whole(1, LONG_MAX)
_MS_AS_INT: Final = _whole(1, LONG_MAX, ConfigType.INT)
"""Where Kafka takes an INT, and we take more."""


def _setting(
    key: str, kind: BrokerSettingKind, documentation: str, field: str = ""
) -> BrokerSetting:
    return BrokerSetting(key, kind, documentation, field or key.replace(".", "_"))


_ROWS: Final = (
    _setting("listen", _address(0), "Where to listen; port 0 takes any that is free."),
    _setting(
        "advertise", _address(1), "The address that clients are told; unless set, that of listen."
    ),
    _setting("data.dir", _PATH, "The directory that holds everything; made if it is not there."),
    _setting(
        "durability",
        _choice("fsync", "os"),
        "What an acknowledgement means: fsync, on stable storage; os, in the system's page cache, "
        "which a power cut may empty.",
    ),
    _setting(
        "insecure",
        _BOOLEAN,
        "Allows to listen on other addresses than loopback, though whoever reaches the port may "
        "read, write and delete everything.",
    ),
    _setting("node.id", _whole(0, INT_MAX), "The broker's number, as clients see it."),
    _setting("num.partitions", _whole(1, 10_000), "Partitions of a topic made without a count."),
    _setting(
        "auto.create.topics.enable",
        _BOOLEAN,
        "Whether a topic is made when a client that wants that asks for one that is not there.",
    ),
    _setting(
        "socket.request.max.bytes",
        _whole(1024, INT_MAX),
        "The largest request; a connection that announces a larger one is closed.",
        "request_max_bytes",
    ),
    _setting(
        "queued.max.request.bytes",
        _BYTES,
        "Memory for large requests that have come in part, of all connections: others wait above. "
        "As much again may be held of answers that clients do not take.",
        "buffered_bytes",
    ),
    _setting(
        "max.connections",
        _COUNT,
        "Connections at once; one more is closed. Fewer where the limit of open files (ulimit -n) "
        "does not allow so many.",
    ),
    _setting("connections.max.idle.ms", _MS, "How long a connection may be silent."),
    _setting(
        "log.retention.check.interval.ms", _MS, "Time between two looks for segments to delete."
    ),
    _setting("log.cleaner.backoff.ms", _MS, "Time between two looks for logs to compact."),
    _setting(
        "group.min.session.timeout.ms", _whole(1, INT_MAX), "The least that a member may ask for."
    ),
    _setting(
        "group.max.session.timeout.ms", _whole(1, INT_MAX), "The most that a member may ask for."
    ),
    _setting(
        "group.initial.rebalance.delay.ms",
        _whole(0, INT_MAX),
        "How long an empty group waits for more members after the first.",
    ),
    _setting("group.max.size", _COUNT, "Members of a group."),
    _setting(
        "offset.metadata.max.bytes", _whole(0, INT_MAX), "The text kept beside a committed offset."
    ),
    _setting(
        "offsets.retention.minutes", _COUNT, "How long the offsets of a group without members stay."
    ),
    _setting(
        "offsets.retention.check.interval.ms", _MS, "Time between two looks for offsets to forget."
    ),
    _setting(
        "offsets.topic.num.partitions",
        _whole(1, 10_000),
        "Partitions of __consumer_offsets when it is made; one that is there keeps its own.",
    ),
    _setting(
        "transaction.max.timeout.ms",
        _COUNT,
        "The most that a producer may ask for as the timeout of its transactions.",
    ),
    _setting(
        "transaction.state.log.num.partitions",
        _whole(1, 10_000),
        "Partitions of __transaction_state when it is made; one that is there keeps its own.",
    ),
    _setting(
        "transactional.id.expiration.ms",
        _MS_AS_INT,
        "How long a transactional id that is not used is remembered.",
    ),
    _setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _MS_AS_INT,
        "Time between two looks for transactional ids to forget.",
        "transaction_expiration_check_interval_ms",
    ),
    _setting(
        "transaction.two.phase.commit.enable",
        _BOOLEAN,
        "Whether producers may take part in two-phase commits: their transactions have no timeout, "
        "and one that is left open holds readers of committed records back until it is ended.",
    ),
    _setting(
        "producer.id.expiration.ms",
        _MS_AS_INT,
        "How long a partition remembers a producer that does not write to it.",
    ),
    _setting(
        "producer.id.expiration.check.interval.ms",
        _MS_AS_INT,
        "Time between two looks for producers to forget.",
    ),
    _setting("max.transactional.ids", _COUNT, "Transactional ids that are remembered at once."),
    _setting("max.open.transactions", _COUNT, "Transactions that are open at once."),
    _setting("max.transaction.partitions", _COUNT, "Partitions that one transaction may write to."),
    _setting(
        "journal.first.file.bytes", _whole(4096, INT_MAX), "Size of the journal's first file."
    ),
    _setting(
        "journal.largest.file.bytes",
        _whole(4096, INT_MAX),
        "Size that the journal's files grow to.",
    ),
    _setting("journal.files", _whole(2, 1000), "Files of the journal."),
    _setting(
        "journal.gathered.bytes", _BYTES, "Bytes that may wait in memory for the journal's disk."
    ),
    _setting(
        "reserve.bytes",
        _whole(0, LONG_MAX),
        "Appends are refused when the disk has less room than this.",
    ),
    _setting(
        "os.checkpoint.bytes",
        _BYTES,
        "With durability os: bytes appended between two checkpoints.",
    ),
    _setting(
        "adopt.unknown.logs",
        _BOOLEAN,
        "Whether a start makes topics again, with default configs, of logs whose topic records "
        "were lost; otherwise it refuses.",
    ),
    _setting(
        "skip.unknown.records",
        _BOOLEAN,
        "Whether a start skips what a newer version wrote of groups and transactions, and so "
        "forgets it; otherwise it refuses.",
    ),
    _setting(
        "log.level", _choice("debug", "info", "warning", "error"), "What is worth a log line."
    ),
    _setting(
        "log.format", _choice("text", "json"), "Log lines for people, or one JSON object a line."
    ),
)

SETTINGS: Final[Mapping[str, BrokerSetting]] = MappingProxyType({row.key: row for row in _ROWS})
