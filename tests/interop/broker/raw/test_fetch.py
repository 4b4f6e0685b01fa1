"""Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords at their edges, and odd requests."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import ConnectionClosed, RawConnection
from tests.interop.broker.raw.steps import (
    START_MS,
    batch,
    create_topic,
    fetch,
    fetch_fields,
    list_offset,
    produce,
    topic_id,
    values_in,
)
from tests.interop.broker.raw.world import stable
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = pytest.mark.interop

SPECIAL_TIMES = {"latest": -1, "earliest": -2, "max timestamp": -3, "earliest local": -4}
LATER_TIMES = {"last tiered": -5, "earliest pending upload": -6}


def fetch_at_the_edges(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        for _ in range(3):
            produce(connection, topic, batch(b"x" * 100, b"y" * 100))
        for offset in (-1, 0, 1, 5, 6, 7, 1 << 40):
            answer = fetch(connection, topic, offset)
            transcript.note(f"offset {offset}", stable(answer, bootstrap))
        assert answer["error_code"] == "OFFSET_OUT_OF_RANGE"
        for limit in (0, 1, 300, 600, 700):
            answer = fetch(connection, topic, 0, max_bytes=limit)
            transcript.note(f"partition_max_bytes {limit}", values_in(answer["records"]))
            transcript.note(f"partition_max_bytes {limit}, size", len(answer["records"]))
        for limit in (0, 1, 600):
            fields = fetch_fields(topic, 2) | {"max_bytes": limit}
            answer = connection.ask(ApiKey.FETCH, 12, fields)
            transcript.note(f"max_bytes {limit}", stable(answer, bootstrap))
        transcript.note("absent topic", stable(fetch(connection, names("absent"), 0), bootstrap))
        fields = fetch_fields(topic, 0)
        fields["topics"][0]["partitions"][0]["partition"] = 7
        answer = connection.ask(ApiKey.FETCH, 12, fields)
        transcript.note("absent partition", stable(answer, bootstrap))
        answer = fetch(connection, topic, 0, isolation_level=1)
        transcript.note("read_committed", stable(answer, bootstrap))


def fetch_by_id(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        produce(connection, topic, batch(b"a"))
        ids = {"its id": topic_id(connection, topic), "zero": None}
        ids["another id"] = uuid.uuid4()
        for label, identity in ids.items():
            for version in (13, 18):
                fields = fetch_fields(topic, 0)
                fields["topics"][0]["topic_id"] = identity
                answer = connection.ask(ApiKey.FETCH, version, fields)
                transcript.note(f"{label} v{version}", stable(answer, bootstrap))


def fetch_shares_the_limit(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """With little room only the first partition that has data is served, and that one whole."""
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic, partitions=3)
        for index in (1, 2):
            part = {"index": index, "records": batch(b"x" * 500)}
            topics = [{"name": topic, "partition_data": [part]}]
            fields: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout": 5000}
            connection.ask(ApiKey.PRODUCE, 9, {**fields, "topic_data": topics})
        limit = {"fetch_offset": 0, "partition_max_bytes": 1 << 20}
        parts = [{"partition": index, **limit} for index in range(3)]
        fields = fetch_fields(topic, 0, max_bytes=400)
        fields["topics"][0]["partitions"] = parts
        for limit_bytes in (10, 700, 5000):
            answer = connection.ask(ApiKey.FETCH, 12, fields | {"max_bytes": limit_bytes})
            rows = answer["responses"][0]["partitions"]
            found = {row["partition_index"]: len(values_in(row["records"])) for row in rows}
            transcript.note(f"{limit_bytes} bytes", found)
        assert found == {0: 0, 1: 1, 2: 1}


def fetch_waits(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A fetch at the end waits its time out, or until there is enough to read."""
    topic = names("topic")
    with (
        RawConnection(bootstrap) as reader,
        RawConnection(bootstrap) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        create_topic(writer, topic)
        start = time.monotonic()
        answer = fetch(reader, topic, 0, max_wait=300, min_bytes=1)
        assert 0.28 <= time.monotonic() - start < 10
        transcript.note("nothing came", stable(answer, bootstrap))
        start = time.monotonic()
        waiting = pool.submit(fetch, reader, topic, 0, max_wait=15_000, min_bytes=250)
        produce(writer, topic, batch(b"x" * 100))
        assert not waiting.done()
        produce(writer, topic, batch(b"y" * 100))
        answer = waiting.result()
        assert time.monotonic() - start < 10
        transcript.note("enough came", values_in(answer["records"]))
        start = time.monotonic()
        answer = fetch(reader, topic, 9, max_wait=15_000, min_bytes=1)
        assert time.monotonic() - start < 10, "an error does not wait"
        transcript.note("out of range", answer["error_code"])


def fetch_sessions(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        produce(connection, topic, batch(b"a"))
        for session, epoch in ((0, -1), (12345, -1), (12345, 5), (0, 7)):
            more = {"session_id": session, "session_epoch": epoch}
            answer = connection.ask(ApiKey.FETCH, 12, fetch_fields(topic, 0, **more))
            transcript.note(f"session {session} epoch {epoch}", stable(answer, bootstrap))
        more = {"session_id": 0, "session_epoch": 0}
        answer = connection.ask(ApiKey.FETCH, 12, fetch_fields(topic, 0, **more))
        transcript.note("a new session is granted", answer["session_id"] != 0)
        transcript.note("its data", stable(answer["responses"], bootstrap))


def leader_epochs(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        produce(connection, topic, batch(b"a", b"b"))
        errors = []
        for epoch in (-2, -1, 0, 1, 5):
            answer = fetch(connection, topic, 0, epoch=epoch)
            errors.append(answer["error_code"])
            transcript.note(f"fetch, epoch {epoch}", stable(answer, bootstrap))
            asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}
            fields: dict[str, Any] = {"replica_id": -1, "isolation_level": 0}
            fields["topics"] = [{"name": topic, "partitions": [asked]}]
            answer = connection.ask(ApiKey.LIST_OFFSETS, 7, fields)
            transcript.note(f"list offsets, epoch {epoch}", answer["topics"])
        assert errors[1:] == ["NONE", "NONE", "UNKNOWN_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"]
        fields = fetch_fields(topic, 2)
        for epoch in (0, 1, 3):
            fields["topics"][0]["partitions"][0]["last_fetched_epoch"] = epoch
            answer = connection.ask(ApiKey.FETCH, 12, fields)
            transcript.note(f"last fetched epoch {epoch}", stable(answer, bootstrap))


def offset_for_leader_epoch(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        for label in ("empty", "with two records"):
            for current, epoch in ((-1, 0), (0, 0), (-1, 1), (-1, -1), (3, 0), (-2, 0)):
                part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
                topics = [{"topic": topic, "partitions": [part, {**part, "partition": 4}]}]
                topics.append({"topic": names("absent"), "partitions": [part]})
                fields = {"replica_id": -1, "topics": topics}
                answer = connection.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, fields)
                transcript.note(f"{label}, {current} {epoch}", stable(answer, bootstrap))
            produce(connection, topic, batch(b"a", b"b"))


def list_offsets_by_time(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    times = SPECIAL_TIMES | {f"time {ms}": START_MS + ms for ms in (-5, 0, 1, 10, 11, 20, 99)}
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        for state in ("empty", "three batches", "cut"):
            for label, timestamp in (times | LATER_TIMES).items():
                answer = list_offset(connection, topic, timestamp, version=11)
                since = answer["timestamp"] - START_MS if answer["timestamp"] > 0 else None
                transcript.note(f"{state}, {label}", answer | {"timestamp": since})
            if state == "empty":
                # The newest time is not in the newest batch.
                for start in (0, 20, 10):
                    produce(connection, topic, batch(b"a", b"b", start_ms=START_MS + start))
            if state == "three batches":
                assert answer["offset"] == -1
                assert list_offset(connection, topic, -3)["offset"] == 3
                cut = {"name": topic, "partitions": [{"partition_index": 0, "offset": 4}]}
                connection.ask(ApiKey.DELETE_RECORDS, 2, {"topics": [cut], "timeout": 5000})
        for version, timestamp in ((1, -3), (6, -3), (7, -4), (8, -5), (10, -6), (11, -7)):
            answer = list_offset(connection, topic, timestamp, version=version)
            transcript.note(f"v{version} {timestamp}", answer)
        answer = list_offset(connection, topic, -1, partition=3)
        transcript.note("absent partition", answer)
        transcript.note("absent topic", list_offset(connection, names("absent"), -1))


def delete_records(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        produce(connection, topic, batch(b"a", b"b", b"c", b"d"))
        for offset in (2, 1, 5, -2, 3, -1):
            row = {"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}
            answer = connection.ask(ApiKey.DELETE_RECORDS, 2, {"topics": [row], "timeout": 5000})
            transcript.note(f"before {offset}", answer)
            transcript.note(f"then {offset}", list_offset(connection, topic, -2))
        assert list_offset(connection, topic, -2)["offset"] == 4
        transcript.note("below the start", stable(fetch(connection, topic, 3), bootstrap))
        compacted = names("compacted")
        create_topic(connection, compacted, configs={"cleanup.policy": "compact"})
        produce(connection, compacted, batch(b"a"))
        row = {"name": compacted, "partitions": [{"partition_index": 0, "offset": 1}]}
        answer = connection.ask(ApiKey.DELETE_RECORDS, 2, {"topics": [row], "timeout": 5000})
        transcript.note("compacted", answer)


def odd_requests(bootstrap: str, names: Names, transcript: Transcript) -> None:
    with RawConnection(bootstrap) as connection:
        connection.send_bytes(ApiKey.API_VERSIONS, 99, b"\x00" * 8, flexible=True)
        answer = connection.receive(ApiKey.API_VERSIONS, 0)
        assert answer["error_code"] == "UNSUPPORTED_VERSION"
        transcript.note("ApiVersions v99", answer)
        for name in ("", "-x", "fine-1.0", "no spaces"):
            fields = {"client_software_name": name, "client_software_version": "1"}
            answer = connection.ask(ApiKey.API_VERSIONS, 3, fields)
            transcript.note(f"software name {name!r}", answer["error_code"])
    odd = {
        "Produce v2": (0, 2, b"\x00" * 10),
        "Produce v99": (0, 99, b"\x00" * 10),
        "Metadata v99": (3, 99, b"\x00" * 10),
        "unknown key": (999, 0, b""),
        "negative version": (3, -1, b""),
        "body cut short": (3, 1, b"\x00\x00"),
        "huge count": (3, 1, b"\x7f\xff\xff\xff"),
    }
    for label, (key, version, body) in odd.items():
        with RawConnection(bootstrap) as connection:
            connection.send_bytes(key, version, body, flexible=False)
            try:
                seen: object = connection.receive_bytes()
            except ConnectionClosed:
                seen = "closed"
            transcript.note(label, seen)


SCRIPTS: tuple[Script, ...] = (
    fetch_at_the_edges,
    fetch_by_id,
    fetch_shares_the_limit,
    fetch_waits,
    fetch_sessions,
    leader_epochs,
    offset_for_leader_epoch,
    list_offsets_by_time,
    delete_records,
    odd_requests,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_reading(script: Script, compare: Compare) -> None:
    compare(script)
