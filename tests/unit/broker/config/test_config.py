"""The broker's settings: precedence, all problems at once, and what must not be started."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config.config import load_config
from onceflow.broker.config.describe import describe_broker
from onceflow.broker.config.example import example_toml
from onceflow.broker.config.live import BrokerSettings
from onceflow.broker.config.settings import (
    SETTINGS,
    BrokerConfig,
    ListenAddress,
    address,
    is_loopback,
)
from onceflow.broker.config.topic_config import ConfigSource
from onceflow.broker.config.topic_settings import BROKER_NAMES
from onceflow.broker.config.topic_values import ConfigType
from onceflow.errors import InvalidSetting
from onceflow.group.config import GroupConfig
from onceflow.log.checkpoint import Durability
from onceflow.log.journal.ring import JournalConfig
from onceflow.log.store import StoreConfig

DATA = {"data-dir": "data"}


def written(directory: Path, text: str) -> Path:
    path = directory / "onceflow.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problem_of(
    flags: dict[str, str | None] | None = None,
    environ: dict[str, str] | None = None,
    path: Path | None = None,
) -> str:
    with pytest.raises(InvalidSetting) as refusal:
        load_config({**DATA, **(flags or {})}, environ or {}, path)
    return str(refusal.value)


def test_the_defaults() -> None:
    config = load_config(DATA, {}, None)
    assert config == BrokerConfig(data_dir=Path("data"))
    assert config.listen == ("127.0.0.1", 9092)
    assert config.durability == "fsync"
    assert config.request_max_bytes == 16 << 20
    assert config.auto_create_topics_enable
    assert config.to_store_config() == StoreConfig()
    assert config.to_group_config() == GroupConfig()


def test_each_number_of_groups_and_store_goes_where_it_belongs() -> None:
    numbers: dict[str, Any] = {
        "group_min_session_timeout_ms": 11,
        "group_max_session_timeout_ms": 12,
        "group_initial_rebalance_delay_ms": 13,
        "group_max_size": 14,
        "offset_metadata_max_bytes": 15,
        "offsets_retention_minutes": 16,
        "offsets_retention_check_interval_ms": 17,
        "offsets_topic_num_partitions": 18,
    }
    config = BrokerConfig(
        data_dir=Path("data"),
        journal_first_file_bytes=5001,
        journal_largest_file_bytes=5002,
        journal_files=5,
        journal_gathered_bytes=5003,
        reserve_bytes=5004,
        os_checkpoint_bytes=5005,
        **numbers,
    )
    groups = config.to_group_config()
    assert {name: getattr(groups, name) for name in numbers} == numbers
    store = config.to_store_config()
    assert store.journal == JournalConfig(
        first_file_bytes=5001, largest_file_bytes=5002, files=5, gathered_bytes=5003
    )
    assert (store.reserve_bytes, store.os_checkpoint_bytes) == (5004, 5005)


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'num.partitions = 2\nnode.id = 2\nmax.connections = 2\ndurability = "os"\n',
    )
    environ = {"ONCEFLOW_NUM_PARTITIONS": "3", "ONCEFLOW_NODE_ID": "3"}
    config = load_config({**DATA, "num-partitions": "4", "node-id": None}, environ, path)
    assert (config.num_partitions, config.node_id, config.max_connections) == (4, 3, 2)
    assert config.to_store_config().durability is Durability.OS


def test_what_a_stronger_source_replaces_is_not_judged() -> None:
    config = load_config({**DATA, "node-id": "4"}, {"ONCEFLOW_NODE_ID": "x"}, None)
    assert config.node_id == 4


@pytest.mark.parametrize(
    "text",
    [
        "group.initial.rebalance.delay.ms = 0",
        '"group.initial.rebalance.delay.ms" = 0',
        "[group]\ninitial.rebalance.delay.ms = 0",
        '[group]\n"initial.rebalance.delay.ms" = "0"',
        '[group."initial.rebalance"]\ndelay.ms = 0',
    ],
)
def test_the_file_may_nest_keys_as_it_likes(tmp_path: Path, text: str) -> None:
    config = load_config(DATA, {}, written(tmp_path, text))
    assert config.group_initial_rebalance_delay_ms == 0


def test_defaults_of_topics_come_from_any_source(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'log.cleanup.policy = ["compact", "delete"]\nlog.preallocate = true\n'
        "log.cleaner.min.cleanable.ratio = 0.25\n",
    )
    environ = {"ONCEFLOW_LOG_RETENTION_HOURS": "1"}
    config = load_config({**DATA, "log.segment.bytes": "2000000"}, environ, path)
    assert config.topic_defaults == {
        "log.cleanup.policy": "compact,delete",
        "log.preallocate": "true",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "log.retention.hours": "1",
        "log.segment.bytes": "2000000",
    }
    assert config.to_store_config().log.retention_ms == 3_600_000
    assert config.to_store_config().log.segment_bytes == 2_000_000


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, 'durability = "maybe"\n[num]\npartition = 3\n')
    with pytest.raises(InvalidSetting) as refusal:
        load_config(
            {"--listen": "0.0.0.0:9092", "max.connections": "0", "--data-dir": None},
            {"ONCEFLOW_LOG_RETENTION_MS": "soon", "ONCEFLOW_NODE_IDS": "1"},
            path,
        )
    told = str(refusal.value).splitlines()
    assert told[0] == "8 things are wrong with the settings:"
    assert told[1:6] == [
        (
            f"  - unknown setting 'num.partition' (file {path}: num.partition); "
            "did you mean 'num.partitions'?"
        ),
        ("  - unknown setting: environment ONCEFLOW_NODE_IDS; did you mean 'ONCEFLOW_NODE_ID'?"),
        f"  - durability = 'maybe' (file {path}: durability) is not allowed; it may be fsync or os",
        (
            "  - log.retention.ms = 'soon' (environment ONCEFLOW_LOG_RETENTION_MS) is not allowed; "
            "it may be a whole number from -1 to 9223372036854775807"
        ),
        ("  - max.connections = '0' is not allowed; it may be a whole number from 1 to 2147483647"),
    ]
    assert told[6].startswith("  - data.dir is not set: ")
    assert "no authentication" in told[7]
    assert "set advertise" in told[8]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("listen", "9092"),
        ("listen", ":9092"),
        ("listen", "::1:9092"),
        ("listen", "127.0.0.1:65536"),
        ("listen", "127.0.0.1:x"),
        ("listen", "local host:1"),
        ("advertise", "example.org:0"),
        ("data-dir", " "),
        ("insecure", "yes"),
        ("durability", "FSYNC"),
        ("node-id", "-1"),
        ("node-id", "1_0"),
        ("socket-request-max-bytes", "1e6"),
        ("connections-max-idle-ms", "99999999999999999999"),
        ("log-level", "loud"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_allowed(key: str, text: str) -> None:
    """A flag is named only if it was one."""
    setting = SETTINGS[key.replace("-", ".")]
    told, reason = f"{setting.name} = {text!r}", f"is not allowed; it may be {setting.kind.allowed}"
    assert problem_of({key: text}) == f"{told} {reason}"
    assert problem_of({f"--{key}": text}) == f"{told} (--{key}) {reason}"


def test_an_unknown_setting_is_refused() -> None:
    assert problem_of({"listn": "x"}) == "unknown setting 'listn'; did you mean 'listen'?"
    assert problem_of({"zzzz": "x"}) == "unknown setting 'zzzz'"


def test_variables_of_others_are_left_alone() -> None:
    environ = {"ONCEFLOW_SERVICE_HOST": "10.0.0.1", "ONCEFLOW_JAVA": "java", "HOME": "/root"}
    assert load_config(DATA, environ, None) == load_config(DATA, {}, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("node.id = ", "is not TOML"),
        ("node.id = 1979-05-27", "node.id = '1979-05-27'"),
        ("node.id = [1, 2]", "node.id = '[1, 2]'"),
        ('"node.id" = 1\n[node]\nid = 2\n', "node.id is set twice"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    problem = problem_of(path=path)
    assert told in problem
    assert str(path) in problem


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in problem_of(path=tmp_path / "absent.toml")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "onceflow.toml"
    path.write_bytes(b"\xef\xbb\xbfnum.partitions = 3\ndata.dir = 'x'\n")
    assert load_config({}, {}, path).num_partitions == 3


def test_a_file_without_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "onceflow.toml"
    path.write_text("num.partitions = " + "[" * 100_000)
    assert "is nested too deeply to hold settings" in problem_of(path=path)


@pytest.mark.parametrize("text", ["data ", " data", "data\n", "", "\t", "da\0ta"])
def test_a_data_directory_is_taken_as_it_is_written_or_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="without blanks before or behind it"):
        load_config({"data-dir": text}, {}, None)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    assert "is not TOML" in problem_of(path=path)


def test_other_machines_are_let_in_only_knowingly() -> None:
    told = problem_of({"listen": "192.168.7.7:9092"})
    assert "there is no authentication yet" in told
    assert "insecure = true" in told
    config = load_config({**DATA, "listen": "192.168.7.7:9092", "insecure": "true"}, {}, None)
    assert config.listen == ("192.168.7.7", 9092)


def test_who_listens_everywhere_says_where_to_connect() -> None:
    everywhere = {"listen": "[::]:9092", "insecure": "TRUE"}
    assert "set advertise" in problem_of(dict(everywhere))
    assert "set advertise" in problem_of({**everywhere, "advertise": "0.0.0.0:9092"})
    config = load_config({**DATA, **everywhere, "advertise": "kafka.example:9092"}, {}, None)
    assert config.advertise == ("kafka.example", 9092)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_topics_are_made_when_asked_for_as_is_set(is_enabled: bool) -> None:
    config = BrokerConfig(data_dir=Path("data"), auto_create_topics_enable=is_enabled)
    assert told(config, "auto.create.topics.enable") == (str(is_enabled).lower(), not is_enabled)


def told(config: BrokerConfig, key: str) -> tuple[str, bool]:
    """By DescribeConfigs: the value, and whether somebody has set it."""
    listen = config.listen
    (entry,) = describe_broker(BrokerSettings(config), listen, listen, [key])
    assert entry.type is ConfigType.BOOLEAN
    return str(entry.value), entry.source is not ConfigSource.DEFAULT


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            {"group-min-session-timeout-ms": "2", "group-max-session-timeout-ms": "1"},
            "group.min.session.timeout.ms = 2 contradicts group.max.session.timeout.ms = 1",
        ),
        (
            {"journal-first-file-bytes": "8192", "journal-largest-file-bytes": "4096"},
            "journal.first.file.bytes = 8192 contradicts journal.largest.file.bytes = 4096",
        ),
        (
            {
                "log.cleaner.min.compaction.lag.ms": "6",
                "log.cleaner.max.compaction.lag.ms": "5",
            },
            "min.compaction.lag.ms (6) > max.compaction.lag.ms (5)",
        ),
    ],
)
def test_what_cannot_be_together(flags: dict[str, str | None], told: str) -> None:
    assert told in problem_of(flags)
    assert told in problem_of({**flags, "node-id": "x"})


def test_a_config_that_is_made_by_hand_is_judged_too() -> None:
    with pytest.raises(InvalidSetting, match=r"num\.partitions = 0 is not allowed; it may be a"):
        BrokerConfig(data_dir=Path("data"), num_partitions=0)
    with pytest.raises(InvalidSetting, match="insecure = true"):
        BrokerConfig(data_dir=Path("data"), listen=ListenAddress("10.0.0.1", 1))


def test_a_config_can_be_sent_to_another_process() -> None:
    config = load_config({**DATA, "log.retention.ms": "5"}, {}, None)
    assert pickle.loads(pickle.dumps(config)) == config


def test_every_field_has_a_setting_and_every_key_a_variable_of_its_own() -> None:
    filled = {setting.attribute for setting in SETTINGS.values()} | {"topic_defaults"}
    assert {field.name for field in fields(BrokerConfig)} == filled
    keys = [*SETTINGS, *BROKER_NAMES]
    assert len({key.replace(".", "_") for key in keys}) == len(keys)


def test_the_example_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    assert tomllib.loads(example_toml()) == {"data": {"dir": "onceflow-data"}}
    as_printed = load_config({}, {}, written(tmp_path, example_toml()))
    assert as_printed == BrokerConfig(data_dir=Path("onceflow-data"))
    live = "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line
        for line in example_toml().splitlines()
    )
    config = load_config({}, {}, written(tmp_path, live))
    assert config.to_store_config() == StoreConfig()
    for key in (*SETTINGS, *BROKER_NAMES):
        assert f"\n{key} = " in live
    assert live.count("\n# Type: ") == len(SETTINGS) + len(BROKER_NAMES)
    plain = BrokerConfig(data_dir=Path("onceflow-data"))
    spelled_out = ("advertise", "topic_defaults")
    for field in fields(BrokerConfig):
        if field.name not in spelled_out:
            assert getattr(config, field.name) == getattr(plain, field.name), field.name


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("text", ["127.0.0.1:1", "[::1]:0", "example.org:65535"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert str(address(0)(text)) == text


def test_importing_it_loads_nothing_heavy() -> None:
    script = (
        "import sys, onceflow.broker.config.config\n"
        "heavy = {'kio', 'numpy', 'pyarrow', 'numba', 'asyncio', 'tomllib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
