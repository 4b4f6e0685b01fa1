"""What a broker can be told: Kafka's names where Kafka has one, ours elsewhere.

Each setting says what it takes, its default and what it means; from here come the messages, the
example of a file, DescribeConfigs and the reference page. Importing this is cheap, because a broker
has to be ready soon: what only some starts need is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceflow.broker.config.topic_config import TopicConfig
from onceflow.errors import InvalidSetting
from onceflow.settings import (
    LARGEST_PORT,
    LONG_MAX,
    TRUE_OR_FALSE,
    NotAllowed,
    Rule,
    Setting,
    SettingKind,
    broken_rules,
    contradiction,
    first_is_larger,
    host_and_port,
    not_allowed,
    one_of,
    setting,
    settings_of,
    shown,
    whole_number,
)

if TYPE_CHECKING:
    from onceflow.group import GroupConfig
    from onceflow.log import StoreConfig


class ListenAddress(NamedTuple):
    """Where a broker listens, or where clients are to connect."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(least_port: int) -> SettingKind:
    """`HOST:PORT`, where an IPv6 host stands in brackets."""

    def read(value: object) -> ListenAddress:
        if not isinstance(value, str | ListenAddress):
            raise ValueError(value)
        return ListenAddress(*host_and_port(str(value).strip(), least_port=least_port))

    return SettingKind(
        "string",
        f"HOST:PORT (an IPv6 host in brackets) with a port from {least_port} to {LARGEST_PORT}",
        read,
    )


def _read_path(value: object) -> Path:
    # A stray blank or line end in quotes must not put the data into another directory.
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value or value != value.strip() or "\0" in value:
        raise ValueError(value)
    return Path(value)


_PATH: Final = SettingKind(
    "string", "the path of a directory, without blanks before or behind it", _read_path
)
_COUNT: Final = whole_number(1)
_BYTES: Final = whole_number(1, LONG_MAX)
_MS: Final = whole_number(1, LONG_MAX)
_MS_AS_INT: Final = whole_number(1, LONG_MAX, "int")
"""Where Kafka takes an INT, and we take more."""
DEFAULT_LISTEN: Final = ListenAddress("127.0.0.1", 9092)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker; one that is not allowed raises `InvalidSetting`."""

    listen: ListenAddress = setting(
        address(0), DEFAULT_LISTEN, "The address to listen on; port 0 takes any free port."
    )
    advertise: ListenAddress | None = setting(
        address(1),
        None,
        "The address that clients connect to; by default that of listen.",
        unset="the address of listen",
        example="127.0.0.1:9092",
    )
    data_dir: Path = setting(
        _PATH,
        MISSING,
        "The directory for all data; created if it does not exist.",
        example="onceflow-data",
    )
    durability: str = setting(
        one_of("fsync", "os"),
        "fsync",
        "What an acknowledgement means: fsync, on stable storage; os, in the system's page cache, "
        "which a power cut may empty.",
    )
    insecure: bool = setting(
        TRUE_OR_FALSE,
        False,
        "Allows listening on addresses other than loopback. Any client that reaches the port can "
        "then read, write and delete everything.",
    )
    node_id: int = setting(whole_number(0), 1, "The broker's number, as clients see it.")
    num_partitions: int = setting(
        whole_number(1, 10_000), 1, "Partitions of a topic created without a count."
    )
    auto_create_topics_enable: bool = setting(
        TRUE_OR_FALSE,
        True,
        "Whether a topic that does not exist is created when a client asks for it and allows that.",
    )
    request_max_bytes: int = setting(
        whole_number(1024),
        16 << 20,
        "The largest request; a connection that announces a larger one is closed.",
        name="socket.request.max.bytes",
    )
    buffered_bytes: int = setting(
        _BYTES,
        256 << 20,
        "Memory for large requests of which a part has arrived, over all connections; above it, "
        "further ones wait. As much again may be used for answers that clients do not read.",
        name="queued.max.request.bytes",
    )
    max_connections: int = setting(
        _COUNT,
        1000,
        "The most connections at once; further ones are closed. Fewer if the limit of open files "
        "(ulimit -n) does not allow that many.",
    )
    connections_max_idle_ms: int = setting(_MS, 600_000, "How long a connection may be idle.")
    log_retention_check_interval_ms: int = setting(
        _MS, 300_000, "Time between two checks for segments to delete."
    )
    log_cleaner_backoff_ms: int = setting(
        _MS, 15_000, "Time between two checks for logs to compact."
    )
    group_min_session_timeout_ms: int = setting(
        whole_number(1), 6_000, "The shortest session timeout that a member may set."
    )
    group_max_session_timeout_ms: int = setting(
        whole_number(1), 1_800_000, "The longest session timeout that a member may set."
    )
    group_initial_rebalance_delay_ms: int = setting(
        whole_number(0), 3_000, "How long an empty group waits for more members after the first."
    )
    group_max_size: int = setting(_COUNT, 2**31 - 1, "The most members of a group.")
    offset_metadata_max_bytes: int = setting(
        whole_number(0), 4096, "The most metadata of a committed offset."
    )
    offsets_retention_minutes: int = setting(
        _COUNT, 7 * 24 * 60, "How long the offsets of an empty group are kept."
    )
    offsets_retention_check_interval_ms: int = setting(
        _MS, 600_000, "Time between two checks for offsets to expire."
    )
    offsets_topic_num_partitions: int = setting(
        whole_number(1, 10_000),
        50,
        "Partitions of __consumer_offsets when it is created; an existing one keeps its own.",
    )
    transaction_max_timeout_ms: int = setting(
        _COUNT, 900_000, "The longest transaction timeout that a producer may set."
    )
    transaction_state_log_num_partitions: int = setting(
        whole_number(1, 10_000),
        50,
        "Partitions of __transaction_state when it is created; an existing one keeps its own.",
    )
    transactional_id_expiration_ms: int = setting(
        _MS_AS_INT, 7 * 24 * 3_600_000, "How long an unused transactional id is remembered."
    )
    transaction_expiration_check_interval_ms: int = setting(
        _MS_AS_INT,
        3_600_000,
        "Time between two checks for transactional ids to expire.",
        name="transaction.remove.expired.transaction.cleanup.interval.ms",
    )
    transaction_two_phase_commit_enable: bool = setting(
        TRUE_OR_FALSE,
        False,
        "Whether producers may take part in two-phase commits: their transactions have no timeout, "
        "and one that is left open holds readers of committed records back until it is ended.",
    )
    producer_id_expiration_ms: int = setting(
        _MS_AS_INT,
        24 * 3_600_000,
        "How long a partition remembers a producer that does not write to it.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        _MS_AS_INT, 600_000, "Time between two checks for producers to expire."
    )
    max_transactional_ids: int = setting(
        _COUNT, 100_000, "The most transactional ids that are remembered."
    )
    max_open_transactions: int = setting(
        _COUNT, 10_000, "The most transactions that are open at once."
    )
    max_transaction_partitions: int = setting(
        _COUNT, 10_000, "The most partitions that one transaction may write to."
    )
    journal_first_file_bytes: int = setting(
        whole_number(4096), 1 << 20, "Size of the journal's first file."
    )
    journal_largest_file_bytes: int = setting(
        whole_number(4096), 128 << 20, "Size that the journal's files grow to."
    )
    journal_files: int = setting(whole_number(2, 1000), 4, "Files of the journal.")
    journal_gathered_bytes: int = setting(
        _BYTES, 64 << 20, "Bytes that may wait in memory for the journal's disk."
    )
    reserve_bytes: int = setting(
        whole_number(0, LONG_MAX),
        16 << 20,
        "Appends are refused when the disk has less room than this.",
    )
    os_checkpoint_bytes: int = setting(
        _BYTES, 1 << 30, "With durability os: bytes appended between two checkpoints."
    )
    adopt_unknown_logs: bool = setting(
        TRUE_OR_FALSE,
        False,
        "Whether a start turns logs whose topic records were lost into topics again, with "
        "default configs; otherwise it refuses.",
    )
    skip_unknown_records: bool = setting(
        TRUE_OR_FALSE,
        False,
        "Whether a start skips, and so forgets, records of groups and transactions that a newer "
        "version wrote; otherwise it refuses.",
    )
    log_level: str = setting(
        one_of("debug", "info", "warning", "error"), "info", "The lowest level that is logged."
    )
    log_format: str = setting(
        one_of("text", "json"), "text", "Log lines for people, or one JSON object a line."
    )
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults of topic configs, by the broker's names for them (`log.retention.ms`)."""

    def __post_init__(self) -> None:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if problems := [*_wrong_values(values)] or [*wrong_together(values)]:
            raise InvalidSetting(report(problems))

    def to_store_config(self) -> StoreConfig:
        """The part that the log store works by."""
        from onceflow.log import Durability, JournalConfig, StoreConfig

        return StoreConfig(
            durability=Durability(self.durability),
            log=TopicConfig.parse({}, self.topic_defaults).to_log_config(),
            journal=JournalConfig(
                first_file_bytes=self.journal_first_file_bytes,
                largest_file_bytes=self.journal_largest_file_bytes,
                files=self.journal_files,
                gathered_bytes=self.journal_gathered_bytes,
            ),
            reserve_bytes=self.reserve_bytes,
            os_checkpoint_bytes=self.os_checkpoint_bytes,
        )

    def to_group_config(self) -> GroupConfig:
        """The part that the group coordinator works by."""
        from onceflow.group import GroupConfig

        return GroupConfig(
            group_min_session_timeout_ms=self.group_min_session_timeout_ms,
            group_max_session_timeout_ms=self.group_max_session_timeout_ms,
            group_initial_rebalance_delay_ms=self.group_initial_rebalance_delay_ms,
            group_max_size=self.group_max_size,
            offset_metadata_max_bytes=self.offset_metadata_max_bytes,
            offsets_retention_minutes=self.offsets_retention_minutes,
            offsets_retention_check_interval_ms=self.offsets_retention_check_interval_ms,
            offsets_topic_num_partitions=self.offsets_topic_num_partitions,
        )


SETTINGS: Final[Mapping[str, Setting]] = settings_of(BrokerConfig)


# --- what is wrong -----------------------------------------------------------------------------

_RULES: Final = tuple(
    Rule(low, high, first_is_larger, f"make {low} smaller, or {high} larger")
    for low, high in (
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
        ("journal.first.file.bytes", "journal.largest.file.bytes"),
    )
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    address = _ip_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _ip_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _wrong_values(values: Mapping[str, Any]) -> Iterator[str]:
    """Values out of range, of a config that was not loaded but made."""
    for name, each in SETTINGS.items():
        value = values[each.attribute]
        if value is None and each.default is None and not each.is_required:
            continue
        try:
            is_right = each.kind(value) == value
        except NotAllowed:
            is_right = False
        if not is_right:
            yield not_allowed(f"{name} = {shown(value)}", each.kind.allowed)


def wrong_together(values: Mapping[str, Any]) -> Iterator[str]:
    listen, advertise = values["listen"], values["advertise"]
    if not is_loopback(listen.host) and not values["insecure"]:
        yield (
            f"listen is '{listen}', which other machines may reach, and there is no "
            "authentication yet: any client that connects can read, write and delete everything. "
            "Listen on a loopback address (127.0.0.1), or set insecure = true to allow it"
        )
    address = _ip_address((advertise or listen).host)
    if address is not None and address.is_unspecified:
        yield (
            f"the broker would advertise '{advertise or listen}', to which no client can "
            "connect: set advertise to a HOST:PORT that clients can reach"
        )
    named = {name: values[each.attribute] for name, each in SETTINGS.items()}
    for rule in broken_rules(_RULES, named):
        one, other = (SETTINGS[name].with_value(named[name]) for name in (rule.one, rule.other))
        yield contradiction(one, other, rule.advice)
    try:
        TopicConfig.parse({}, values["topic_defaults"])
    except InvalidSetting as problem:
        yield str(problem)


def report(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return "\n".join(
        [
            f"{len(problems)} things are wrong with the settings:",
            *(f"  - {each}" for each in problems),
        ]
    )
