"""Topics and their configs request by request: results and refusals are Apache Kafka's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import (
    batch,
    commit,
    create_topic,
    join_alone,
    leave,
    produce,
    topic_id,
    wait_for_coordinator,
)
from tests.interop.broker.raw.world import stable
from tests.interop.harness import Compare, Names, Script, Transcript, eventually

pytestmark = pytest.mark.interop

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def new_topic(name: str, count: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    row = {"name": name, "num_partitions": count, "replication_factor": factor}
    return {**row, "assignments": [], "configs": [], **more}


def config(name: str, value: str | None) -> list[dict[str, Any]]:
    return [{"name": name, "value": value}]


def create_refusals(bootstrap: str, names: Names, transcript: Transcript) -> None:
    old = names("old")
    placed = [{"partition_index": 0, "broker_ids": [1]}]
    rows = {
        "exists": new_topic(old),
        "no partition": new_topic(names("a"), 0),
        "negative partitions": new_topic(names("b"), -2),
        "factor 2": new_topic(names("c"), 1, 2),
        "factor 0": new_topic(names("d"), 1, 0),
        "empty name": new_topic(""),
        "a dot": new_topic("."),
        "two dots": new_topic(".."),
        "a slash": new_topic("a/b"),
        "a space": new_topic("a b"),
        "249 letters": new_topic((names("e") + "x" * 249)[:249]),
        "250 letters": new_topic((names("f") + "x" * 250)[:250]),
        "collides": new_topic(old.replace(".", "_")),
        "defaults": new_topic(names("g"), -1, -1),
        "partitions and places": new_topic(names("h"), 1, -1, assignments=placed),
        "gap in places": new_topic(
            names("i"), -1, -1, assignments=[{"partition_index": 1, "broker_ids": [1]}]
        ),
        "unknown config": new_topic(names("j"), configs=config("no.such.config", "1")),
        "bad number": new_topic(names("k"), configs=config("retention.ms", "soon")),
        "number too small": new_topic(names("l"), configs=config("segment.bytes", "1")),
        "bad choice": new_topic(names("m"), configs=config("compression.type", "middle-out")),
        "bad policy": new_topic(names("n"), configs=config("cleanup.policy", "burn")),
        "null value": new_topic(names("o"), configs=config("retention.ms", None)),
        "spaces around": new_topic(names("p"), configs=config("retention.ms", " 60000 ")),
    }
    with RawConnection(bootstrap) as connection:
        create_topic(connection, old)
        for label, row in rows.items():
            fields = {"topics": [row], "timeout": 10_000, "validate_only": False}
            answer = connection.ask(ApiKey.CREATE_TOPICS, 7, fields)["topics"][0]
            transcript.note(label, stable(answer | {"configs": None}, bootstrap))
        twice = [new_topic(names("twice")), new_topic(names("twice"), 2)]
        answer = connection.ask(ApiKey.CREATE_TOPICS, 7, {"topics": twice, "timeout": 10_000})
        transcript.note("twice in one request", stable(answer, bootstrap))


def _says(error: str, metadata: Any) -> bool:
    """A broker that is told by a controller hears of a change a little later."""
    return bool(metadata["topics"][0]["error_code"] == error)


def deletion(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        old_id = topic_id(connection, topic)
        rows = [{"name": topic, "topic_id": None}, {"name": names("absent"), "topic_id": None}]
        answer = connection.ask(ApiKey.DELETE_TOPICS, 6, {"topics": rows, "timeout": 10_000})
        transcript.note("by name", stable(answer, bootstrap))
        for label, row in (
            ("neither", {"name": None, "topic_id": None}),
            ("both", {"name": names("absent"), "topic_id": old_id}),
        ):
            answer = connection.ask(ApiKey.DELETE_TOPICS, 6, {"topics": [row], "timeout": 10_000})
            transcript.note(f"by {label}", stable(answer, bootstrap))
        asked: dict[str, Any] = {"allow_auto_topic_creation": False}
        asked["topics"] = [{"name": topic, "topic_id": None}]
        error = eventually(
            lambda: connection.ask(ApiKey.METADATA, 12, asked)["topics"][0]["error_code"],
            lambda error: error != "NONE",
        )
        transcript.note("gone", error)
        create_topic(connection, topic)
        new_id = topic_id(connection, topic)
        assert new_id != old_id
        for label, identity, error in (
            ("old id", old_id, "UNKNOWN_TOPIC_ID"),
            ("new id", new_id, "NONE"),
            ("again", new_id, "UNKNOWN_TOPIC_ID"),
        ):
            asked = {"topics": [{"name": None, "topic_id": identity}]}
            answer = eventually(
                partial(connection.ask, ApiKey.METADATA, 12, asked), partial(_says, error)
            )
            transcript.note(f"metadata by {label}", stable(answer["topics"], bootstrap))
            row = {"name": None, "topic_id": identity}
            answer = connection.ask(ApiKey.DELETE_TOPICS, 6, {"topics": [row], "timeout": 10_000})
            transcript.note(f"delete by {label}", stable(answer, bootstrap))


def more_partitions(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic, partitions=2)
        for count in (1, 2, 0, -1, 3, 4):
            row: dict[str, Any] = {"name": topic, "count": count, "assignments": None}
            if count == 4:
                row["assignments"] = [{"broker_ids": [1]}, {"broker_ids": [1]}]
            fields = {"topics": [row], "timeout": 10_000, "validate_only": False}
            answer = connection.ask(ApiKey.CREATE_PARTITIONS, 3, fields)
            transcript.note(f"to {count}", stable(answer, bootstrap))
        asked = {"topics": [{"name": topic, "topic_id": None}]}
        grown = eventually(
            lambda: connection.ask(ApiKey.METADATA, 12, asked)["topics"][0],
            lambda seen: len(seen["partitions"]) == 3,
        )
        transcript.note("metadata", stable(grown, bootstrap))
        parts = {"topics": [{"name": topic}], "response_partition_limit": 2, "cursor": None}
        answer = connection.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, parts)
        transcript.note("first two", stable(answer, bootstrap))
        answer = connection.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, parts | {"cursor": answer["next_cursor"]}
        )
        transcript.note("the rest", stable(answer, bootstrap))


def describe(connection: RawConnection, topic: str, keys: list[str] | None) -> Any:
    row = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": keys}
    fields = {"resources": [row], "include_synonyms": True}
    return connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, fields)["results"][0]


def alter(connection: RawConnection, topic: str, *changes: tuple[str, int, str | None]) -> Any:
    configs = [{"name": n, "config_operation": op, "value": value} for n, op, value in changes]
    row = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    fields = {"resources": [row], "validate_only": False}
    return connection.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)["responses"][0]


def configs(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    changes: list[tuple[str, int, str | None]] = [
        ("retention.ms", SET, "60000"),
        ("max.message.bytes", SET, "500"),
        ("cleanup.policy", APPEND, "compact"),
        ("cleanup.policy", SUBTRACT, "delete"),
        ("cleanup.policy", SET, ""),
        ("retention.ms", APPEND, "1"),
        ("retention.ms", SET, "never"),
        ("retention.ms", SET, "-2"),
        ("retention.ms", SET, None),
        ("no.such.config", SET, "1"),
        ("no.such.config", DELETE, None),
        ("retention.ms", 9, "1"),
        ("compression.type", SET, "gzip"),
        ("message.timestamp.type", SET, "LogAppendTime"),
        ("retention.ms", DELETE, None),
    ]
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic, configs={"segment.bytes": "2000000"})
        for change in changes:
            answer = alter(connection, topic, *[change])
            transcript.note(f"alter {change}", stable(answer, bootstrap))
        twice = (("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        transcript.note("alter twice", stable(alter(connection, topic, *twice), bootstrap))
        mixed = (("retention.ms", SET, "5"), ("segment.bytes", SET, "x"))
        transcript.note("good and bad", stable(alter(connection, topic, *mixed), bootstrap))
        keys = sorted({name for name, _, _ in changes} | {"segment.bytes"})
        seen = eventually(
            lambda: describe(connection, topic, keys),
            lambda seen: "LogAppendTime" in [row["value"] for row in seen["configs"]],
        )
        transcript.note("described", stable(seen, bootstrap))
        large = batch(b"x" * 500)
        error = eventually(
            lambda: produce(connection, topic, large)["error_code"], lambda error: error != "NONE"
        )
        transcript.note("max.message.bytes took effect", error)
        assert error == "MESSAGE_TOO_LARGE"


def too_few_replicas(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """min.insync.replicas above what there is: acks=1 is taken, acks=all is what Kafka says."""
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic, configs={"min.insync.replicas": "2"})
        for acks in (1, -1):
            answer = produce(connection, topic, batch(b"a"), acks=acks)
            transcript.note(f"acks={acks}", stable(answer, bootstrap))


def every_topic_config(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Every config of a topic by name, default, type and source."""
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        found = describe(connection, topic, None)
        transcript.note("names", sorted(row["name"] for row in found["configs"]))
        for row in sorted(found["configs"], key=lambda row: str(row["name"])):
            transcript.note(row["name"], stable(row, bootstrap))


def odd_resources(bootstrap: str, names: Names, transcript: Transcript) -> None:
    with RawConnection(bootstrap) as connection:
        for kind, name in (
            (TOPIC, ""),
            (TOPIC, names("absent")),
            (0, "x"),
            (99, "x"),
            (BROKER, "x"),
        ):
            row = {"resource_type": kind, "resource_name": name, "configuration_keys": ["a"]}
            answer = connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [row]})
            transcript.note(f"describe {kind} {names.hide(name)!r}", stable(answer, bootstrap))
            change = {"name": "retention.ms", "config_operation": SET, "value": "1"}
            row = {"resource_type": kind, "resource_name": name, "configs": [change]}
            answer = connection.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [row]})
            transcript.note(f"alter {kind} {names.hide(name)!r}", stable(answer, bootstrap))


def whether_topics_are_made(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Nobody has set it: what is told is what holds."""
    key = "auto.create.topics.enable"
    with RawConnection(bootstrap) as connection:
        row = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": [key]}
        answer = connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [row]})
        (found,) = answer["results"][0]["configs"]
        transcript.note(key, [found[name] for name in ("name", "value", "config_type")])


def auto_creation(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Metadata makes a topic when it is asked to, and never one with an invalid name."""
    with RawConnection(bootstrap) as connection:
        for label, allow in (("wanted", True), ("unwanted", False), ("not/valid", True)):
            asked = [{"name": names(label), "topic_id": None}]
            fields = {"topics": asked, "allow_auto_topic_creation": allow}
            answer = connection.ask(ApiKey.METADATA, 12, fields)["topics"]
            transcript.note(f"{label}: first", sorted({row["error_code"] for row in answer}))
            if label != "wanted":
                continue
            made = eventually(
                partial(connection.ask, ApiKey.METADATA, 12, fields),
                lambda answer: answer["topics"][0]["error_code"] == "NONE",
            )
            transcript.note(f"{label}: then", stable(made["topics"], bootstrap))


def group_lists(bootstrap: str, names: Names, transcript: Transcript) -> None:
    full, empty, simple = names("full"), names("empty"), names("simple")
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        join_alone(connection, full)
        leave(connection, empty, join_alone(connection, empty)["member_id"])
        wait_for_coordinator(connection, simple)
        assert commit(connection, simple, topic, 1) == "NONE"
        for states in ([], ["Stable"], ["Empty"], ["stable"], ["Nonsense"]):
            for types in ([], ["classic"], ["consumer"], ["Nonsense"]):
                fields = {"states_filter": states, "types_filter": types}
                answer = connection.ask(ApiKey.LIST_GROUPS, 5, fields)
                rows = [row for row in answer["groups"] if names.mine([row["group_id"]])]
                label = f"states {states} types {types}"
                transcript.note(label, stable(answer | {"groups": rows}, bootstrap))
        asked = {"groups": [full, empty, simple], "include_authorized_operations": False}
        answer = connection.ask(ApiKey.DESCRIBE_GROUPS, 5, asked)
        transcript.note("described", stable(answer, bootstrap))


SCRIPTS: tuple[Script, ...] = (
    create_refusals,
    deletion,
    more_partitions,
    configs,
    too_few_replicas,
    every_topic_config,
    odd_resources,
    whether_topics_are_made,
    auto_creation,
    group_lists,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_admin(script: Script, compare: Compare) -> None:
    compare(script)
