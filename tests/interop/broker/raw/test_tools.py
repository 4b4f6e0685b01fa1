"""What tools for administration ask a broker: log dirs, elections, reassignments, the quorum,
features, and the configs of the broker itself; with all that can be odd about the questions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from onceflow.broker.config.describe import describe_broker as describe_ours
from onceflow.broker.config.live import BrokerSettings
from onceflow.broker.config.settings import BrokerConfig
from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.requests import METADATA_TOPIC
from tests.interop.broker.raw.steps import batch, create_topic, produce
from tests.interop.broker.raw.world import OF_THE_DISK, OF_THE_METADATA_LOG, stable, without
from tests.interop.harness import Compare, Names, Script, Transcript, eventually

pytestmark = pytest.mark.interop

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
HERE: Final = "1"
OURS_ALONE: Final = frozenset(
    {
        "adopt.unknown.logs",
        "advertise",
        "data.dir",
        "durability",
        "insecure",
        "journal.files",
        "journal.first.file.bytes",
        "journal.gathered.bytes",
        "journal.largest.file.bytes",
        "listen",
        "log.format",
        "log.level",
        "max.open.transactions",
        "max.transaction.partitions",
        "max.transactional.ids",
        "os.checkpoint.bytes",
        "producer.id.expiration.check.interval.ms",  # which Apache Kafka has, and does not tell
        "reserve.bytes",
        "skip.unknown.records",
    }
)
FIXED_HERE: Final = frozenset(
    {
        "listener.security.protocol.map",
        "listeners",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "max.connections.per.ip",
        "num.io.threads",
        "num.network.threads",
        "transaction.partition.verification.enable",
    }
)
"""What Apache Kafka can be told while it runs."""
OTHER_VALUES: Final = frozenset(
    {
        "advertised.listeners",  # told by Apache Kafka only where it is set
        "auto.create.topics.enable",  # set for these tests to what it is anyway
        "num.partitions",  # likewise
        "broker.id",
        "group.coordinator.rebalance.protocols",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",  # at which Apache Kafka does not look where log.dirs is set
        "log.dirs",
        "max.connections",
        "min.insync.replicas",  # which Apache Kafka keeps as a setting of the cluster
        "node.id",
        "num.io.threads",
        "num.network.threads",
        "offsets.topic.replication.factor",
        "process.roles",
        "queued.max.request.bytes",
        "socket.request.max.bytes",
        "transaction.state.log.min.isr",
        "transaction.state.log.replication.factor",
    }
)
"""Set otherwise, or of a broker that has more threads, protocols and nodes than one."""


def kafkas_names() -> list[str]:
    """All that Onceflow describes under a name of Kafka's."""
    config = BrokerConfig(data_dir=Path("data"))
    told = describe_ours(BrokerSettings(config), config.listen, config.listen, None)
    return sorted({entry.name for entry in told} - OURS_ALONE)


def log_dirs(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic, partitions=2)
        assert produce(connection, topic, batch(b"a", b"b"))["error_code"] == "NONE"
        for label, rows in {
            "odd partitions": [(topic, [0, 0, -1, 9])],
            "in two places": [(topic, [0]), (topic, [1, 0])],
            "absent": [(names("absent"), [0]), ("", [0])],
            "nothing": [],
        }.items():
            asked = [{"topic": name, "partitions": partitions} for name, partitions in rows]
            answer = connection.ask(ApiKey.DESCRIBE_LOG_DIRS, 5, {"topics": asked})
            transcript.note(label, stable(without(OF_THE_DISK, answer), bootstrap))
        answer = connection.ask(ApiKey.DESCRIBE_LOG_DIRS, 5, {"topics": None})
        mine = [row for row in answer["results"][0]["topics"] if row["name"] == topic]
        transcript.note("all", stable(mine, bootstrap))


def elections(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    rows: dict[str, list[tuple[str, list[int]]]] = {
        "odd partitions": [(topic, [0, 0, -1, 9])],
        "in two places": [(topic, [0]), (topic, [1])],
        "no partition": [(topic, [])],
        "absent": [(names("absent"), [0])],
        "nothing": [],
    }
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic, partitions=2)
        for label, asked in rows.items():
            for kind in (0, 1, 7):
                parts = [{"topic": name, "partitions": each} for name, each in asked]
                fields: dict[str, Any] = {"election_type": kind, "topic_partitions": parts}
                answer = connection.ask(ApiKey.ELECT_LEADERS, 2, fields)
                transcript.note(f"{label}, type {kind}", stable(answer, bootstrap))
        fields = {"election_type": 0, "topic_partitions": None}
        answer = connection.ask(ApiKey.ELECT_LEADERS, 2, fields)
        mine = [row for row in answer["replica_election_results"] if row["topic"] == topic]
        transcript.note("all", stable(mine, bootstrap))


def reassignments(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic, absent = names("topic"), names("absent")
    replicas: dict[str, list[int] | None] = {
        "here": [1],
        "cancelled": None,
        "nowhere": [],
        "elsewhere": [5],
        "here and elsewhere": [1, 5],
        "here twice": [1, 1],
        "on a negative broker": [-1],
    }
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic, partitions=2)

        def reassign(*rows: tuple[str, Sequence[int], list[int] | None]) -> Any:
            topics = [
                {
                    "name": name,
                    "partitions": [{"partition_index": each, "replicas": to} for each in indexes],
                }
                for name, indexes, to in rows
            ]
            fields = {"topics": topics, "timeout": 10_000, "allow_replication_factor_change": True}
            return connection.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, fields)

        for label, to in replicas.items():
            answer = reassign((topic, [0, -1, 9], to), (absent, [0], to))
            transcript.note(label, stable(answer, bootstrap))
        answer = reassign((topic, [0, 0], [1]), (topic, [0], [1]))
        transcript.note("named twice", stable(answer, bootstrap))
        listed: dict[str, list[dict[str, Any]] | None] = {
            "all": None,
            "none": [],
            "some": [{"name": topic, "partition_indexes": [0, 0, -1, 9]}],
            "absent": [{"name": absent, "partition_indexes": [0]}],
        }
        for label, asked in listed.items():
            fields = {"topics": asked, "timeout": 10_000}
            answer = connection.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, fields)
            transcript.note(f"listed: {label}", stable(answer, bootstrap))


def quorum(bootstrap: str, names: Names, transcript: Transcript) -> None:
    with RawConnection(bootstrap) as connection:
        asked: dict[str, list[tuple[str, list[int]]]] = {
            "the log": [(METADATA_TOPIC, [0])],
            "another partition": [(METADATA_TOPIC, [1])],
            "a negative one": [(METADATA_TOPIC, [-1])],
            "twice": [(METADATA_TOPIC, [0, 0])],
            "another topic": [(names("absent"), [0])],
            "both": [(METADATA_TOPIC, [0]), (names("absent"), [0])],
            "no partition": [(METADATA_TOPIC, [])],
            "nothing": [],
        }
        for label, rows in asked.items():
            topics = [
                {"topic_name": name, "partitions": [{"partition_index": each} for each in indexes]}
                for name, indexes in rows
            ]
            answer = connection.ask(ApiKey.DESCRIBE_QUORUM, 2, {"topics": topics})
            transcript.note(label, stable(without(OF_THE_METADATA_LOG, answer), bootstrap))


def features(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Nothing is changed: the broker is one for all tests."""
    own = "transaction.version"
    with RawConnection(bootstrap) as connection:
        for version in range(3):
            for label, updates in {
                "as it is": [(own, 2, 1)],
                "twice": [(own, 2, 1), (own, 2, 1)],
                "lower": [(own, 1, 1)],
                "lower, knowingly": [(own, 1, 2)],
                "none at all": [(own, 0, 1)],
                "too high": [(own, 9, 1)],
                "negative": [(own, -1, 1)],
                "of no type": [(own, 2, 0)],
                "of an odd type": [(own, 2, 9)],
                "unknown": [("no.such.feature", 1, 1)],
                "without a name": [("", 1, 1)],
                "known and unknown": [(own, 2, 1), ("no.such.feature", 1, 1)],
                "nothing": [],
            }.items():
                rows = [
                    {"feature": name, "max_version_level": level, "upgrade_type": kind}
                    | {"allow_downgrade": kind > 1}
                    for name, level, kind in updates
                ]
                fields = {"feature_updates": rows, "timeout": 10_000, "validate_only": True}
                if version == 0 and label.startswith("lower"):
                    continue  # which has no way to say that it is only to be looked at
                answer = connection.ask(ApiKey.UPDATE_FEATURES, version, fields)
                answer["error_message"] = bool(answer["error_message"])
                transcript.note(f"v{version} {label}", stable(answer, bootstrap))


def config_resources(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        for kinds in ([], [2], [4], [16], [32], [2, 2], [2, 4, 16], [0], [99], [2, 99]):
            fields = {"resource_types": kinds}
            answer = connection.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, fields)
            rows = [
                row
                for row in answer["config_resources"]
                if row["resource_type"] == BROKER or row["resource_name"] == topic
            ]
            transcript.note(str(kinds), stable(answer | {"config_resources": rows}, bootstrap))


def cluster_operations(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        for version in range(8, 14):
            for asked in (True, False):
                fields = {
                    "topics": [{"name": topic, "topic_id": None}],
                    "allow_auto_topic_creation": False,
                    "include_cluster_authorized_operations": asked,
                    "include_topic_authorized_operations": not asked,
                }
                answer = connection.ask(ApiKey.METADATA, version, fields)
                transcript.note(f"metadata v{version} {asked}", stable(answer, bootstrap))
        for asked in (True, False):
            fields = {"include_cluster_authorized_operations": asked, "endpoint_type": 1}
            answer = connection.ask(ApiKey.DESCRIBE_CLUSTER, 2, fields)
            transcript.note(f"cluster {asked}", answer["cluster_authorized_operations"])


def describe_broker(connection: RawConnection, *keys: str, name: str = HERE) -> Any:
    row = {"resource_type": BROKER, "resource_name": name, "configuration_keys": [*keys] or None}
    fields = {"resources": [row], "include_synonyms": True, "include_documentation": True}
    (found,) = connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, fields)["results"]
    assert found["error_code"] == "NONE"
    return {row["name"]: row for row in found["configs"]}


def broker_configs(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Those of Kafka's that Onceflow has, by name, type, unit, and whether they can be altered."""
    with RawConnection(bootstrap) as connection:
        found = describe_broker(connection)
        for name in kafkas_names():
            row = found[name]
            assert row["documentation"]
            transcript.note(f"{name} type", row["config_type"])
            if name not in FIXED_HERE:
                transcript.note(f"{name} read-only", row["read_only"])
            if name not in OTHER_VALUES:
                kept = ("value", "config_source", "synonyms", "is_sensitive")
                transcript.note(f"{name} is", {key: row[key] for key in kept})
        assert str(found["listeners"]["value"]).startswith(f"PLAINTEXT://{bootstrap}")


def _comes_from(sources: list[int], rows: list[Any]) -> bool:
    """Apache Kafka answers before all of it goes by what was altered."""
    told = [[synonym["source"] for synonym in row["synonyms"]] for row in rows]
    values = {row["value"] for row in rows} | {row["synonyms"][0]["value"] for row in rows}
    return told == [sources] * len(rows) and len(values) == 1


def altered_broker(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A setting for this broker, for all, and taken back; a topic that does not set it follows."""
    key, kept = "compression.gzip.level", ("value", "config_source", "synonyms")
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)

        def alter(name: str, operation: int, value: str | None) -> Any:
            change = {"name": key, "config_operation": operation, "value": value}
            row = {"resource_type": BROKER, "resource_name": name, "configs": [change]}
            return connection.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [row]})

        def seen() -> list[Any]:
            row = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [key]}
            fields = {"resources": [row], "include_synonyms": True}
            (found,) = connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, fields)["results"]
            rows = [describe_broker(connection, key)[key], *found["configs"]]
            return [{name: row[name] for name in kept} for row in rows]

        try:
            for name, operation, value, sources in (
                (HERE, SET, "5", [2, 5]),
                ("", SET, "6", [2, 3, 5]),
                (HERE, DELETE, None, [3, 5]),
                (HERE, SET, "7", [2, 3, 5]),
                ("", DELETE, None, [2, 5]),
                (HERE, DELETE, None, [5]),
            ):
                label = f"{name!r} {operation} {value}"
                transcript.note(label, stable(alter(name, operation, value), bootstrap))
                found = eventually(seen, partial(_comes_from, sources))
                transcript.note(f"{label}: then", found)
        finally:
            alter(HERE, DELETE, None)
            alter("", DELETE, None)


def odd_alterations(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Of the broker; nothing is changed by any of them."""
    key = "log.retention.ms"
    odd: dict[str, tuple[str, list[tuple[str, int, str | None]]]] = {
        "good": (HERE, [(key, SET, "1000")]),
        "good for all": ("", [(key, SET, "1000")]),
        "no number": (HERE, [(key, SET, "x")]),
        "too small": (HERE, [(key, SET, "-2")]),
        "too few connections": (HERE, [("max.connections", SET, "-5")]),
        "read-only": (HERE, [("num.partitions", SET, "4")]),
        "read-only for all": ("", [("auto.create.topics.enable", SET, "false")]),
        "read-only, deleted": (HERE, [("num.partitions", DELETE, None)]),
        "in hours": (HERE, [("log.retention.hours", SET, "5")]),
        "its number": (HERE, [("broker.id", SET, "5")]),
        "its number, too": (HERE, [("node.id", SET, "5")]),
        "where it is": (HERE, [("advertised.listeners", SET, "PLAINTEXT://127.0.0.1:9")]),
        "unknown": (HERE, [("no.such.config", SET, "4")]),
        "unknown, deleted": (HERE, [("no.such.config", DELETE, None)]),
        "another broker": ("7", [(key, SET, "1000")]),
        "no broker": ("x", [(key, SET, "1000")]),
        "appended to no list": (HERE, [(key, APPEND, "1000")]),
        "appended": (HERE, [("log.cleanup.policy", APPEND, "compact")]),
        "subtracted": (HERE, [("log.cleanup.policy", SUBTRACT, "compact")]),
        "appended nonsense": (HERE, [("log.cleanup.policy", APPEND, "burn")]),
        "twice": (HERE, [(key, SET, "1"), (key, SET, "2")]),
        "null": (HERE, [(key, SET, None)]),
        "an odd operation": (HERE, [(key, 9, "1")]),
        "nothing": (HERE, []),
    }
    with RawConnection(bootstrap) as connection:
        for label, (name, changes) in odd.items():
            configs = [
                {"name": config, "config_operation": operation, "value": value}
                for config, operation, value in changes
            ]
            row = {"resource_type": BROKER, "resource_name": name, "configs": configs}
            fields = {"resources": [row], "validate_only": True}
            answer = connection.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
            transcript.note(label, stable(answer, bootstrap))
            if any(operation != SET for _, operation, _ in changes):
                continue
            if name == "":
                continue  # see ELIGIBLE_LEADERS
            answer = connection.ask(ApiKey.ALTER_CONFIGS, 2, fields)
            transcript.note(f"anew: {label}", stable(answer, bootstrap))


def altered_anew(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """AlterConfigs: what is not named goes back to its default."""
    topic, keys = names("topic"), ["retention.ms", "segment.bytes"]
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)

        def alter(kind: int, name: str, *pairs: tuple[str, str | None], **more: Any) -> Any:
            configs = [{"name": key, "value": value} for key, value in pairs]
            row = {"resource_type": kind, "resource_name": name, "configs": configs}
            return connection.ask(ApiKey.ALTER_CONFIGS, 2, {"resources": [row], **more})

        def values() -> list[str]:
            row = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": keys}
            (found,) = connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [row]})["results"]
            rows = sorted(found["configs"], key=lambda row: str(row["name"]))
            return [row["value"] for row in rows]

        for label, pairs, expected in (
            ("one", [("retention.ms", "1000")], ["1000", "1073741824"]),
            ("another", [("segment.bytes", "2000000")], ["604800000", "2000000"]),
            ("none", [], ["604800000", "1073741824"]),
        ):
            transcript.note(label, stable(alter(TOPIC, topic, *pairs), bootstrap))
            transcript.note(f"{label}: then", eventually(values, partial(operator.eq, expected)))
        odd: tuple[tuple[str, int, str, list[tuple[str, str | None]]], ...] = (
            ("null", TOPIC, topic, [("retention.ms", None)]),
            ("no number", TOPIC, topic, [("retention.ms", "x")]),
            ("unknown", TOPIC, topic, [("no.such.config", "x")]),
            ("twice", TOPIC, topic, [("retention.ms", "1"), ("retention.ms", "2")]),
            ("absent", TOPIC, names("absent"), [("retention.ms", "1")]),
            ("without a name", TOPIC, "", [("retention.ms", "1")]),
            ("not a name", TOPIC, "a/b", [("retention.ms", "1")]),
            ("no kind", 0, "x", [("a", "b")]),
            ("an odd kind", 99, "x", [("a", "b")]),
        )
        for label, kind, name, given in odd:
            transcript.note(label, stable(alter(kind, name, *given), bootstrap))
        answer = alter(TOPIC, topic, ("retention.ms", "5"), validate_only=True)
        transcript.note("only looked at", stable(answer, bootstrap))
        transcript.note("only looked at: then", values())


SCRIPTS: tuple[Script, ...] = (
    log_dirs,
    elections,
    reassignments,
    quorum,
    features,
    config_resources,
    cluster_operations,
    broker_configs,
    altered_broker,
    odd_alterations,
    altered_anew,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_tools(script: Script, compare: Compare) -> None:
    compare(script)
