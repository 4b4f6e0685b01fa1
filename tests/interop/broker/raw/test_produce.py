"""Produce as no client sends it: each refusal, with its error code, is Apache Kafka's."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import cramjam
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import ConnectionClosed, RawConnection
from tests.interop.broker.raw.steps import (
    START_MS,
    batch,
    create_topic,
    fetch,
    list_offset,
    produce,
    produce_fields,
    topic_id,
    values_in,
    with_crc,
)
from tests.interop.broker.raw.world import stable
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = pytest.mark.interop

ATTRIBUTES, LAST_OFFSET_DELTA, RECORD_COUNT = 21, 23, 57


def patched(data: bytes, at: int, layout: str, value: int) -> bytes:
    """The batch with one field changed, and a checksum that fits it."""
    field = struct.pack(layout, value)
    return with_crc(data[:at] + field + data[at + len(field) :])


def magic_1() -> bytes:
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 16)
    builder.append(0, timestamp=START_MS, key=b"k", value=b"v")
    return bytes(builder.build())


def zeroed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def bad_batches() -> dict[str, bytes]:
    """Null for records is not among them: Apache Kafka never answers it."""
    good = batch(b"a", b"b")
    return {
        "wrong checksum": zeroed(good, len(good) - 1),
        "magic 1": magic_1(),
        "magic 3": good[:16] + b"\x03" + good[17:],
        "two batches": good + good,
        "nothing": b"",
        "cut short": good[:-3],
        "only a header's start": good[:10],
        "control batch": patched(good, ATTRIBUTES, ">h", 0x20),
        "unknown codec": patched(good, ATTRIBUTES, ">h", 5),
        "fewer records than it says": patched(good, RECORD_COUNT, ">i", 3),
        "more records than it says": patched(good, RECORD_COUNT, ">i", 1),
        "no record": patched(good, RECORD_COUNT, ">i", 0),
        "offsets do not fit the count": patched(good, LAST_OFFSET_DELTA, ">i", 5),
        "far in the future": batch(b"a", start_ms=4_000_000_000_000),
        "a time before 1970": batch(b"a", start_ms=-1),
    }


def refuses_broken_batches(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
    for label, data in bad_batches().items():
        with RawConnection(bootstrap) as connection:
            try:
                answer: Any = stable(produce(connection, topic, data), bootstrap)
            except ConnectionClosed:
                answer = "closed"
            transcript.note(label, answer)
    with RawConnection(bootstrap) as connection:
        transcript.note("end offset", list_offset(connection, topic, -1)["offset"])
        assert produce(connection, topic, batch(b"good"))["error_code"] == "NONE"


def refuses_by_rules_of_the_topic(bootstrap: str, names: Names, transcript: Transcript) -> None:
    small, compacted = names("small"), names("compacted")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, small, configs={"max.message.bytes": "1000"})
        create_topic(connection, compacted, configs={"cleanup.policy": "compact"})
        overhead = len(batch(b""))
        for size in (1000 - overhead - 2, 1000):
            answer = stable(produce(connection, small, batch(b"x" * size)), bootstrap)
            transcript.note(f"{size} bytes, 1000 are allowed", answer)
        assert answer["error_code"] == "MESSAGE_TOO_LARGE"
        for key in (None, b"", b"k"):
            answer = stable(produce(connection, compacted, batch(b"v", key=key)), bootstrap)
            transcript.note(f"compacted topic, key {key!r}", answer)
        assert values_in(fetch(connection, compacted, 0)["records"]) == [(0, b"v"), (1, b"v")]


def refuses_wrong_addresses_and_acks(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic, absent, data = names("topic"), names("absent"), batch(b"a")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        for acks in (2, -2, 1, -1):
            answer = produce(connection, topic, data, acks=acks)
            transcript.note(f"acks={acks}", stable(answer, bootstrap))
        transcript.note("absent topic", stable(produce(connection, absent, data), bootstrap))
        fields = produce_fields(topic, data)
        fields["topic_data"][0]["partition_data"][0]["index"] = 7
        answer = connection.ask(ApiKey.PRODUCE, 9, fields)
        transcript.note("absent partition", stable(answer, bootstrap))
        fields = produce_fields(topic, data)
        fields["topic_data"][0]["topic_id"] = topic_id(connection, topic)
        transcript.note("by id", stable(connection.ask(ApiKey.PRODUCE, 13, fields), bootstrap))
        for label, version in (("an id that is no random one", 1), ("a random id", 4)):
            fields["topic_data"][0]["topic_id"] = uuid.UUID(int=0x5EED << 64, version=version)
            answer = stable(connection.ask(ApiKey.PRODUCE, 13, fields), bootstrap)
            transcript.note(label, answer)
        fields["topic_data"] = []
        transcript.note("no topic", stable(connection.ask(ApiKey.PRODUCE, 9, fields), bootstrap))
        assert list_offset(connection, topic, -1)["offset"] == 3


def one_answer_for_each_partition(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Good and bad partitions in one request: the good ones are written."""
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic, partitions=2)
        fields = produce_fields(topic, batch(b"good"))
        good = fields["topic_data"][0]["partition_data"][0]
        bad = {"index": 1, "records": zeroed(batch(b"bad"), 70)}
        fields["topic_data"][0]["partition_data"] = [good, bad, {**good, "index": 2}]
        transcript.note("mixed", stable(connection.ask(ApiKey.PRODUCE, 9, fields), bootstrap))
        assert values_in(fetch(connection, topic, 0)["records"]) == [(0, b"good")]
        transcript.note("end of the bad one", list_offset(connection, topic, -1, partition=1))


def zstd_needs_version_7(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = names("topic")
    plain = batch(b"a" * 50)
    packed = plain[:61] + bytes(cramjam.zstd.compress(plain[61:]))
    packed = packed[:8] + struct.pack(">i", len(packed) - 12) + packed[12:]
    packed = patched(packed, ATTRIBUTES, ">h", 4)
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        for version in (3, 6, 7, 13):
            fields = produce_fields(topic, packed)
            fields["topic_data"][0]["topic_id"] = topic_id(connection, topic)
            answer = connection.ask(ApiKey.PRODUCE, version, fields)
            transcript.note(f"produce v{version}", stable(answer, bootstrap))
        assert [offset for offset, _ in values_in(fetch(connection, topic, 0)["records"])] == [0, 1]
        for version in (9, 10):
            fetched = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            asked = {"topics": [{"topic": topic, "partitions": [fetched]}], "replica_id": -1}
            waits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
            answer = connection.ask(ApiKey.FETCH, version, {**asked, **waits})
            transcript.note(f"fetch v{version}", stable(answer, bootstrap))


def acks_0_is_silent(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Nothing is answered, the next answer is that of the next request; an error closes."""
    topic = names("topic")
    with RawConnection(bootstrap) as connection:
        create_topic(connection, topic)
        connection.send(ApiKey.PRODUCE, 9, produce_fields(topic, batch(b"a"), acks=0))
        transcript.note(
            "the next answer", stable(produce(connection, topic, batch(b"b")), bootstrap)
        )
        assert [value for _, value in values_in(fetch(connection, topic, 0)["records"])] == [
            b"a",
            b"b",
        ]
        connection.send(ApiKey.PRODUCE, 9, produce_fields(names("absent"), batch(b"a"), acks=0))
        with pytest.raises(ConnectionClosed):
            list_offset(connection, topic, -1)
        transcript.note("after an error", "closed")


SCRIPTS: tuple[Script, ...] = (
    refuses_broken_batches,
    refuses_by_rules_of_the_topic,
    refuses_wrong_addresses_and_acks,
    one_answer_for_each_partition,
    zstd_needs_version_7,
    acks_0_is_silent,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_produce(script: Script, compare: Compare) -> None:
    compare(script)
