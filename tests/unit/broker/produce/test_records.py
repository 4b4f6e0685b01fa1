"""What topics ask of records: timestamps, codecs, keys, sizes; and records that are deleted."""

from __future__ import annotations

from typing import Any

import cramjam
import pyarrow as pa
import pytest

from onceflow.records.batch import (
    HEADER_SIZE,
    Codec,
    StoredBatch,
    TimestampType,
    iter_stored,
)
from onceflow.records.columns import decode as to_columns, encode
from onceflow.records.compression import compress
from onceflow.testing.clock import WALL_START_MS
from onceflow.testing.world import World
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, batch, made, play, values_in
from tests.unit.broker.produce.odd_batches import VALUES, with_section

HOUR_MS = 3_600_000


def stored(records: bytes) -> StoredBatch:
    (only,) = iter_stored(records)
    return only


# --- timestamps ----------------------------------------------------------------------------------


def test_log_append_time_is_the_brokers() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", message_timestamp_type="LogAppendTime")
        answer = await client.produce("orders", batch(b"a", b"b", timestamp=12))
        assert WALL_START_MS <= answer["log_append_time"] < WALL_START_MS + 1000
        header = stored((await client.fetch("orders", 0))["records"]).header
        assert header.timestamp_type is TimestampType.LOG_APPEND
        assert header.max_timestamp == answer["log_append_time"]
        found = await client.list_offset("orders", answer["log_append_time"])
        assert (found["offset"], found["timestamp"]) == (0, answer["log_append_time"])

    play(script)


def test_create_time_is_the_clients() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        answer = await client.produce("orders", batch(b"a", timestamp=12))
        assert answer["log_append_time"] is None
        header = stored((await client.fetch("orders", 0))["records"]).header
        assert (header.timestamp_type, header.max_timestamp) == (TimestampType.CREATE, 12)

    play(script)


def test_a_client_may_not_claim_that_its_times_are_the_brokers() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        claimed = made(b"a").assign_log_append_time(0, -1, 5)
        answer = await client.produce("orders", bytes(claimed.buffer))
        assert answer["error_code"] == "INVALID_TIMESTAMP"

    play(script)


@pytest.mark.parametrize(
    ("shift_ms", "configs", "code"),
    [
        (HOUR_MS - 1000, {}, "NONE"),
        (HOUR_MS + 1000, {}, "INVALID_TIMESTAMP"),
        (-(10**9), {}, "NONE"),
        (-9000, {"message_timestamp_before_max_ms": "10000"}, "NONE"),
        (-11000, {"message_timestamp_before_max_ms": "10000"}, "INVALID_TIMESTAMP"),
        (9000, {"message_timestamp_after_max_ms": "10000"}, "NONE"),
        (11000, {"message_timestamp_after_max_ms": "10000"}, "INVALID_TIMESTAMP"),
        (
            11000,
            {
                "message_timestamp_after_max_ms": "10000",
                "message_timestamp_type": "LogAppendTime",
            },
            "NONE",
        ),
    ],
)
def test_timestamps_too_far_from_the_brokers(
    shift_ms: int, configs: dict[str, str], code: str
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 1, **configs)
        timestamp = world.clock.wall_ms() + shift_ms
        answer = await client.produce("orders", batch(b"a", timestamp=timestamp))
        assert answer["error_code"] == code
        assert (await client.list_offset("orders", -1))["offset"] == (code == "NONE")

    play(script)


def test_a_record_without_a_timestamp_is_not_too_old() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", message_timestamp_before_max_ms="10000")
        assert (await client.produce("orders", batch(b"a", timestamp=-1)))["error_code"] == "NONE"
        answer = await client.produce("orders", batch(b"a", timestamp=0))
        assert answer["error_code"] == "INVALID_TIMESTAMP"

    play(script)


# --- codecs --------------------------------------------------------------------------------------


def compressed(codec: Codec) -> bytes:
    columns = to_columns([StoredBatch(*made(*VALUES))])
    return bytes(encode(columns, codec=codec).buffer)


@pytest.mark.parametrize("wanted", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topics_codec_is_what_its_records_have(wanted: str) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", compression_type=wanted)
        for number, codec in enumerate(Codec):
            sent = compressed(codec)
            answer = await client.produce("orders", sent)
            assert (answer["error_code"], answer["base_offset"]) == ("NONE", 3 * number)
            records = (await client.fetch("orders", 3 * number))["records"]
            found = stored(records).header.codec
            expected = {"producer": codec.name, "uncompressed": "NONE"}.get(wanted, wanted.upper())
            assert found.name == expected
            if found is codec:
                assert records[17:] == sent[17:], "nothing is done that need not be"
            assert values_in(records) == [(3 * number + at, v) for at, v in enumerate(VALUES)]
            kept = to_columns([stored(records)])["timestamp"].cast(pa.int64()).to_pylist()
            assert (
                kept
                == to_columns([StoredBatch(*made(*VALUES))])["timestamp"]
                .cast(pa.int64())
                .to_pylist()
            )

    play(script)


def test_zstd_needs_a_client_that_knows_it() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        part = {"index": 0, "records": compressed(Codec.ZSTD)}
        topics = [{"name": "orders", "partition_data": [part]}]
        fields = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}
        for version, code in ((6, "UNSUPPORTED_COMPRESSION_TYPE"), (7, "NONE")):
            answer = await client.ask(ApiKey.PRODUCE, version, fields)
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == code

    play(script)


def test_lz4_that_readers_in_java_refuse_is_refused() -> None:
    section = bytes(made(*VALUES).buffer[HEADER_SIZE:])
    linked = bytes(cramjam.lz4.compress(section))

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        sent = {
            "linked blocks": (linked, "INVALID_RECORD"),
            "two frames": (2 * bytes(compress(Codec.LZ4, section)), "INVALID_RECORD"),
            "damaged": (linked[:-5], "INVALID_RECORD"),
            "independent blocks": (bytes(compress(Codec.LZ4, section)), "NONE"),
        }
        for label, (frame, code) in sent.items():
            answer = await client.produce("orders", with_section(frame, Codec.LZ4))
            assert answer["error_code"] == code, label

    play(script)


# --- keys and sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_takes_no_record_without_a_key(policy: str) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", cleanup_policy=policy)
        answer = await client.produce("orders", batch(b"a", key=None))
        assert answer["error_code"] == "INVALID_RECORD"
        assert "key" in answer["error_message"]
        assert (await client.produce("orders", batch(b"a", key=b"")))["error_code"] == "NONE"

    play(script)


def test_a_batch_may_be_as_large_as_the_topic_allows() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        records = batch(bytes(500))
        await client.create("exact", max_message_bytes=str(len(records)))
        await client.create("less", max_message_bytes=str(len(records) - 1))
        assert (await client.produce("exact", records))["error_code"] == "NONE"
        assert (await client.produce("less", records))["error_code"] == "MESSAGE_TOO_LARGE"
        await client.create("usual")
        around = len(batch(bytes(1_000_000))) - 1_000_000
        largest = batch(bytes(1_048_588 - around))
        assert (await client.produce("usual", largest))["error_code"] == "NONE"
        larger = batch(bytes(1_048_588 - around + 1))
        assert (await client.produce("usual", larger))["error_code"] == "MESSAGE_TOO_LARGE"

    play(script)


def test_bytes_that_are_no_batch_are_refused_and_the_connection_goes_on() -> None:
    good = batch(b"value")
    wrong: dict[str, tuple[bytes, str]] = {
        "empty": (b"", "INVALID_RECORD"),
        "cut off": (good[:-3], "INVALID_RECORD"),
        "a flipped bit": (good[:-1] + bytes([good[-1] ^ 1]), "CORRUPT_MESSAGE"),
        "an old format": (good[:16] + b"\x01" + good[17:], "INVALID_RECORD"),
        "an old format whose timestamp has a byte that says transaction in ours": (
            good[:16] + b"\x01" + good[17:22] + b"\x10" + good[23:],
            "INVALID_RECORD",
        ),
        "two batches": (good + good, "INVALID_RECORD"),
        "a header alone": (good[:61], "INVALID_RECORD"),
    }

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        for name, (records, code) in wrong.items():
            assert (await client.produce("orders", records))["error_code"] == code, name
        assert (await client.produce("orders", good))["base_offset"] == 0

    play(script)


def test_the_brokers_own_topics_are_not_for_clients() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        fields = {"key_type": 0, "coordinator_keys": ["group"]}
        while True:
            found = await client.ask(ApiKey.FIND_COORDINATOR, 4, fields)
            if found["coordinators"][0]["error_code"] == "NONE":
                break
        answer = await client.produce("__consumer_offsets", batch(b"a"))
        assert answer["error_code"] == "INVALID_TOPIC_EXCEPTION"
        deleted = await delete_records(client, "__consumer_offsets", 0)
        assert deleted == ("INVALID_TOPIC_EXCEPTION", -1)
        unknown: Any = await client.produce("__cluster_metadata", batch(b"a"))
        assert unknown["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"

    play(script)


# --- deleted records -----------------------------------------------------------------------------


async def delete_records(client: RawClient, topic: str, offset: int) -> tuple[str, int]:
    part = {"partition_index": 0, "offset": offset}
    fields = {"topics": [{"name": topic, "partitions": [part]}], "timeout": 1000}
    answer = await client.ask(ApiKey.DELETE_RECORDS, 2, fields)
    result = answer["topics"][0]["partitions"][0]
    return result["error_code"], result["low_watermark"]


def test_deleted_records_are_not_read_any_more() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await client.create("keyed", cleanup_policy="compact")
        for number in range(5):
            await client.produce("orders", batch(b"%d" % number))
        assert await delete_records(client, "orders", 2) == ("NONE", 2)
        assert await delete_records(client, "orders", 1) == ("NONE", 2), "never back"
        assert await delete_records(client, "orders", 6) == ("OFFSET_OUT_OF_RANGE", -1)
        assert await delete_records(client, "orders", -2) == ("OFFSET_OUT_OF_RANGE", -1)
        assert await delete_records(client, "absent", 0) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)
        assert await delete_records(client, "keyed", 0) == ("POLICY_VIOLATION", -1)
        assert (await client.fetch("orders", 1))["error_code"] == "OFFSET_OUT_OF_RANGE"
        answer = await client.fetch("orders", 2)
        assert values_in(answer["records"])[0] == (2, b"2")
        assert answer["log_start_offset"] == 2
        assert (await client.list_offset("orders", -2))["offset"] == 2
        assert (await client.produce("orders", batch(b"5")))["log_start_offset"] == 2
        assert await delete_records(client, "orders", -1) == ("NONE", 6)
        assert (await client.fetch("orders", 6))["records"] == b""
        assert (await client.produce("orders", batch(b"6")))["base_offset"] == 6

    play(script)


# --- many wrong ones -----------------------------------------------------------------------------


def test_of_many_wrong_records_the_first_are_named() -> None:
    many = 5000

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("table", 20, cleanup_policy="compact")
        wrong = batch(*[b"v"] * many, key=None)
        answer = await client.produce("table", wrong)
        assert answer["error_code"] == "INVALID_RECORD"
        assert [each["batch_index"] for each in answer["record_errors"]] == [*range(100)]
        assert f"with {many} records, the first 100" in answer["error_message"]
        few = await client.produce("table", batch(b"v", b"v", key=None))
        assert len(few["record_errors"]) == 2
        assert "named" not in few["error_message"]

    play(script)


def test_an_answer_names_only_so_many_wrong_records_of_all_partitions() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("table", 20, cleanup_policy="compact")
        wrong = batch(*[b"v"] * 200, key=None)
        parts = [{"index": number, "records": wrong} for number in range(20)]
        topics = [{"name": "table", "partition_data": parts}]
        fields = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}
        answer = await client.ask(ApiKey.PRODUCE, 9, fields)
        results = answer["responses"][0]["partition_responses"]
        assert [len(each["record_errors"]) for each in results] == [100] * 10 + [0] * 10
        assert {each["error_code"] for each in results} == {"INVALID_RECORD"}
        assert all("with 200 records" in each["error_message"] for each in results)

    play(script)
