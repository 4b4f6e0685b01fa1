"""The broker's settings: from flags, environment and a TOML file, judged together.

Flags win over the environment (`ONCEFLOW_NUM_PARTITIONS` is `num.partitions`), that over the file,
that over the defaults. One `InvalidSetting` reports all errors at once: the key, the value, where
it was set and what is allowed. Importing this module is cheap, because a broker has to be ready
soon: what only some starts need is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceflow.broker.config.settings import SETTINGS, ListenAddress
from onceflow.broker.config.topic_config import TopicConfig
from onceflow.broker.config.topic_settings import BROKER_NAMES
from onceflow.errors import InvalidSetting

if TYPE_CHECKING:
    from onceflow.group import GroupConfig
    from onceflow.log import StoreConfig

PREFIX: Final = "ONCEFLOW_"
DEFAULT_LISTEN: Final = ListenAddress("127.0.0.1", 9092)
_KNOWN: Final = (*SETTINGS, *BROKER_NAMES)
_BY_VARIABLE: Final = {PREFIX + key.replace(".", "_").upper(): key for key in _KNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker; each is what config_settings.py says of the key it is named by.

    One that is not allowed raises `InvalidSetting`.
    """

    data_dir: Path
    listen: ListenAddress = DEFAULT_LISTEN
    advertise: ListenAddress | None = None
    durability: str = "fsync"
    insecure: bool = False
    node_id: int = 1
    num_partitions: int = 1
    auto_create_topics_enable: bool = True
    request_max_bytes: int = 16 << 20
    buffered_bytes: int = 256 << 20
    max_connections: int = 1000
    connections_max_idle_ms: int = 600_000
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_backoff_ms: int = 15_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    transaction_max_timeout_ms: int = 900_000
    transaction_state_log_num_partitions: int = 50
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    transaction_expiration_check_interval_ms: int = 3_600_000
    transaction_two_phase_commit_enable: bool = False
    producer_id_expiration_ms: int = 24 * 3_600_000
    producer_id_expiration_check_interval_ms: int = 600_000
    max_transactional_ids: int = 100_000
    max_open_transactions: int = 10_000
    max_transaction_partitions: int = 10_000
    journal_first_file_bytes: int = 1 << 20
    journal_largest_file_bytes: int = 128 << 20
    journal_files: int = 4
    journal_gathered_bytes: int = 64 << 20
    reserve_bytes: int = 16 << 20
    os_checkpoint_bytes: int = 1 << 30
    adopt_unknown_logs: bool = False
    skip_unknown_records: bool = False
    log_level: str = "info"
    log_format: str = "text"
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults of topic configs, by the broker's names for them (`log.retention.ms`)."""

    def __post_init__(self) -> None:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if problems := [*_wrong_values(values)] or [*_wrong_together(values)]:
            raise InvalidSetting(_report(problems))

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


class _Given(NamedTuple):
    """A setting as it was written."""

    text: str
    source: str
    """Where, for a message; empty where the reader of the message knows."""


def load_config(
    written: Mapping[str, str | None], environ: Mapping[str, str], toml_path: Path | None
) -> BrokerConfig:
    """The settings from all sources.

    `written` are settings by name (`data.dir`), and flags by theirs (`--data-dir`), which messages
    then name; None is one that was not given.
    """
    problems: list[str] = []
    given = {
        **_from_file(toml_path, problems),
        **_from_environment(environ, problems),
        **_from_written(written, problems),
    }
    values: dict[str, Any] = {}
    defaults: dict[str, str] = {}
    for key, setting in given.items():
        try:
            if key in SETTINGS:
                values[SETTINGS[key].field] = SETTINGS[key].parse(setting.text)
            else:
                topic_setting, broker_name = BROKER_NAMES[key]
                topic_setting.parse_default(broker_name, setting.text)
                defaults[key] = setting.text.strip()
        except ValueError:
            allowed = SETTINGS[key].kind.allowed
            problems.append(_wrong(key, setting, f"allowed is {allowed}"))
        except InvalidSetting as problem:
            problems.append(_wrong(key, setting, str(problem)))
    if "data.dir" not in given:
        problems.append(
            "data.dir is not set: give a directory by the option --data-dir, by the environment "
            f"variable {PREFIX}DATA_DIR or by data.dir in the file"
        )
    if problems:
        problems += _wrong_together({**_defaults(), **values, "topic_defaults": defaults})
        raise InvalidSetting(_report(problems))
    return BrokerConfig(**values, topic_defaults=defaults)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    address = _ip_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _ip_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


# --- the sources -------------------------------------------------------------------------------


def _from_written(written: Mapping[str, str | None], problems: list[str]) -> dict[str, _Given]:
    given = {}
    for name, text in written.items():
        key = name.removeprefix("--").replace("-", ".").replace("_", ".")
        if text is None:
            continue
        source = name if name.startswith("--") else ""
        if key in _KNOWN:
            given[key] = _Given(text, source)
        else:
            problems.append(_unknown(key, source))
    return given


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, _Given]:
    """A variable that is nearly a setting's is a mistake; others may be somebody else's.

    A cluster manager makes variables such as ONCEFLOW_SERVICE_HOST out of a service's name.
    """
    given = {}
    for name, text in environ.items():
        source = f"environment {name}"
        if name in _BY_VARIABLE:
            given[_BY_VARIABLE[name]] = _Given(text, source)
        elif name.startswith(PREFIX) and (hint := _did_you_mean(name, _BY_VARIABLE, 0.85)):
            problems.append(f"unknown setting: {source}{hint}")
    return given


def _from_file(path: Path | None, problems: list[str]) -> dict[str, _Given]:
    if path is None:
        return {}
    import tomllib

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        problems.append(f"the file {path} cannot be read: {error.strerror}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"the file {path} is not TOML: {error}")
        return {}
    except RecursionError:
        problems.append(f"the file {path} is nested too deeply to hold settings")
        return {}
    given: dict[str, _Given] = {}
    for key, value in _flat(tables, ""):
        source = f"file {path}: {key}"
        text = _toml_text(value)
        if key not in _KNOWN:
            problems.append(_unknown(key, source))
        elif key in given:
            problems.append(f"{key} is set twice (file {path}): once is enough")
        elif text is None:
            problems.append(_wrong(key, _Given(str(value), source), "allowed is one value"))
        else:
            given[key] = _Given(text, source)
    return given


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    """Dotted keys and values, however the file nests them."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _toml_text(value: object) -> str | None:
    """The value as a flag or a variable would have it; None where those could not."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return str(value) if isinstance(value, str | int | float) else None


# --- what is wrong -----------------------------------------------------------------------------


def _wrong(key: str, given: _Given, reason: str) -> str:
    return f"{key} is {given.text!r}{_shown(given.source)}: {reason}"


def _unknown(key: str, source: str) -> str:
    return f"unknown setting {key!r}{_shown(source)}{_did_you_mean(key, _KNOWN, 0.6)}"


def _shown(source: str) -> str:
    return f" ({source})" if source else ""


def _did_you_mean(name: str, known: Iterable[str], likeness: float) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1, cutoff=likeness)
    return f"; did you mean {near[0]!r}?" if near else ""


def _wrong_values(values: Mapping[str, Any]) -> Iterator[str]:
    """Values out of range, of a config that was not loaded but made."""
    for key, setting in SETTINGS.items():
        value = values[setting.field]
        if value is None and setting.field in _OPTIONAL:
            continue
        if not setting.kind.allows(value):
            yield f"{key} is {value!r}: allowed is {setting.kind.allowed}"


def _wrong_together(values: Mapping[str, Any]) -> Iterator[str]:
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
    for low, high in (
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
        ("journal.first.file.bytes", "journal.largest.file.bytes"),
    ):
        lowest, highest = values[SETTINGS[low].field], values[SETTINGS[high].field]
        if lowest > highest:
            yield f"{low} is {lowest} and {high} is {highest}: the first may not be the larger"
    try:
        TopicConfig.parse({}, values["topic_defaults"])
    except InvalidSetting as problem:
        yield str(problem)


def _report(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return "\n".join(
        [
            f"{len(problems)} things are wrong with the settings:",
            *(f"  - {each}" for each in problems),
        ]
    )


def _defaults() -> dict[str, Any]:
    return {each.name: each.default for each in fields(BrokerConfig) if each.default is not MISSING}


_OPTIONAL: Final = frozenset(name for name, default in _defaults().items() if default is None)
