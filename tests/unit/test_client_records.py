"""Sending and reading records: which partition, what is sent again, what is passed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

from onceflow.client.cluster import Cluster, ClusterSettings
from onceflow.client.errors import AnswerMalformed, BrokerError
from onceflow.client.model import TopicPartition
from onceflow.client.produce_wire import read_produce
from onceflow.client.retry import RetryPolicy
from onceflow.client.simple_consumer import SimpleConsumer
from onceflow.client.simple_producer import MAX_BATCH_BYTES, NewRecord, Sent, SimpleProducer
from onceflow.errors import MessageMalformed
from onceflow.records.batch import Codec, StoredBatch
from onceflow.records.columns import decode, encode
from onceflow.records.control import marker
from onceflow.records.murmur2 import partition_for_key
from onceflow.runtime.sim_world import World, run
from onceflow.wire.api import ApiKey
from onceflow.wire.produce import ProduceResult, write_response
from tests.unit.client_helpers import ADDRESS, CLOSE, NO_TIME, Answer, listen, metadata, new

PARTITIONS = 3
Program = Callable[[Cluster, SimpleProducer], Awaitable[None]]


def simulate(answers: dict[ApiKey, Answer], program: Program, **settings: Any) -> None:
    async def main(world: World) -> None:
        about = metadata({"orders": dict.fromkeys(range(PARTITIONS), 1)})
        await listen(world.net.host("broker"), {ApiKey.METADATA: lambda *_: about, **answers})
        cluster = Cluster(
            [ADDRESS],
            ClusterSettings(retry=RetryPolicy(total_s=5)),
            net=world.net.host("client"),
            rand=world.rand.fork("client"),
        )
        topic = await cluster.find_topic("orders")
        producer = SimpleProducer(
            cluster, topic, clock=world.clock, rand=world.rand.fork("sticky"), **settings
        )
        await program(cluster, producer)
        cluster.close()

    run(1, main)


class Log:
    """Appends what is produced, and answers as a broker does."""

    def __init__(self, *refusals: int | object) -> None:
        self.batches: dict[int, list[StoredBatch]] = {}
        self.requests: list[list[int]] = []
        self._refusals = list(refusals)

    def __call__(self, version: int, request: Any) -> Any:
        (topic,) = request.topic_data
        self.requests.append([each.index for each in topic.partition_data])
        refusal = self._refusals.pop(0) if self._refusals else 0
        results = []
        for number, each in enumerate(topic.partition_data):
            if refusal is not CLOSE and refusal and number == 0:
                assert isinstance(refusal, int)
                results.append(ProduceResult(each.index, error=refusal))
            else:
                results.append(ProduceResult(each.index, base_offset=self._append(each)))
        return CLOSE if refusal is CLOSE else write_response([("orders", results)], version)

    def _append(self, each: Any) -> int:
        log = self.batches.setdefault(each.index, [])
        offset = log[-1].header.next_offset if log else 0
        batch = StoredBatch.parse(bytearray(each.records))
        header = batch.header._replace(base_offset=offset)
        log.append(StoredBatch(header, batch.buffer))
        return offset

    def values(self, partition: int) -> list[bytes]:
        found: Any = decode(self.batches[partition]).column("value").to_pylist()
        return list(found)


def test_keys_choose_the_partition_and_records_without_stay_together() -> None:
    log = Log()
    keys = [b"key-%d" % number for number in range(30)]

    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        sent = await producer.send([NewRecord(key, key) for key in keys])
        assert sum(each.records for each in sent) == 30
        for partition in range(PARTITIONS):
            mine = [key for key in keys if partition_for_key(key, PARTITIONS) == partition]
            assert log.values(partition) == mine
        used = [
            [each.partition for each in await producer.send([NewRecord(b"x")] * 5)]
            for _ in range(20)
        ]
        assert {len(each) for each in used} == {1}
        assert {each[0] for each in used} == set(range(PARTITIONS))

    simulate({ApiKey.PRODUCE: log}, program)


def test_a_chosen_partition_takes_all() -> None:
    log = Log()

    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        sent = await producer.send([NewRecord(b"x", b"%d" % number) for number in range(10)])
        assert sent == [Sent(2, 10, 0, 9)]

    simulate({ApiKey.PRODUCE: log}, program, partition=2)


def test_much_is_sent_in_batches_of_bounded_size_in_order() -> None:
    log = Log()
    values = [bytes([number]) * 100_000 for number in range(20)]

    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        assert await producer.send(map(NewRecord, values)) == [Sent(1, 20, 0, 19)]
        assert log.values(1) == values
        assert len(log.batches[1]) == 4
        assert all(each.header.size <= MAX_BATCH_BYTES for each in log.batches[1])

    simulate({ApiKey.PRODUCE: log}, program, partition=1)


def test_headers_times_and_nulls_arrive_as_they_are() -> None:
    log = Log()

    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        record = NewRecord(None, b"", (("a", b"1"), ("a", None)), timestamp_ms=5)
        await producer.send([record, NewRecord(b"", None)])
        (first, second) = decode(log.batches[0]).to_pylist()
        assert (first["key"], first["value"]) == (b"", None)
        assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
        assert first["timestamp"].timestamp() == 0.005
        assert (second["key"], second["value"], second["headers"]) == (None, b"", [])
        assert log.batches[0][0].header.codec is Codec.ZSTD

    simulate({ApiKey.PRODUCE: log}, program, partition=0, codec=Codec.ZSTD)


def test_only_the_batch_that_was_refused_is_sent_again() -> None:
    log = Log(ErrorCode.not_enough_replicas.value)
    keys = [b"key-%d" % number for number in range(30)]

    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        await producer.send([NewRecord(b"v", key) for key in keys])
        first, second = log.requests
        assert sorted(first) == [0, 1, 2]
        assert second == first[:1]
        assert sum(len(log.values(partition)) for partition in range(PARTITIONS)) == 30

    simulate({ApiKey.PRODUCE: log}, program)


def test_a_batch_whose_answer_is_lost_is_sent_again() -> None:
    log = Log(CLOSE)

    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        # The broker had it already: doubled, and the offset is that of the second.
        assert await producer.send([NewRecord(b"v")]) == [Sent(0, 1, 1, 1)]
        assert log.values(0) == [b"v", b"v"]

    simulate({ApiKey.PRODUCE: log}, program, partition=0)


def test_a_refusal_that_lasts_is_told_with_the_partition() -> None:
    log = Log(ErrorCode.message_too_large.value)

    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        with pytest.raises(BrokerError, match=r"orders-0.*max\.message\.bytes.*MESSAGE_TOO_LARGE"):
            await producer.send([NewRecord(b"v")])

    simulate({ApiKey.PRODUCE: log}, program, partition=0)


@pytest.mark.parametrize("body", [b"", b"\x02\x07orders\x02\x00\x00", write_response([], 12)])
def test_an_answer_that_does_not_fit_the_request_is_refused(body: bytes) -> None:
    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        with pytest.raises(AnswerMalformed):
            await producer.send([NewRecord(b"v")])

    simulate({ApiKey.PRODUCE: lambda *_: body}, program, partition=0)


def test_every_part_of_a_produce_answer_is_read() -> None:
    refused = ProduceResult(4, error=87, message="no", record_errors=((2, "no key"), (3, None)))
    body = write_response([("a", [ProduceResult(0, base_offset=9)]), ("b", [refused])], 12)
    first, second = read_produce(12, memoryview(body))
    assert first == (TopicPartition("a", 0), 0, 9, -1, -1, None)
    assert second == (TopicPartition("b", 4), 87, -1, -1, -1, "record 2: no key; record 3: None")
    for size in range(len(body) - 6):  # behind it is only the throttle time
        with pytest.raises(MessageMalformed):
            read_produce(12, memoryview(body)[:size])


def fetch_answer(records: bytes, high_watermark: int, error: Any = ErrorCode.none) -> Any:
    topic = new(ApiKey.FETCH, "response", "FetchableTopicResponse")
    partition = new(ApiKey.FETCH, "response", "PartitionData")
    found = partition(
        partition_index=0,
        error_code=error,
        high_watermark=high_watermark,
        aborted_transactions=None,
        records=records,
    )
    return new(ApiKey.FETCH, "response")(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        responses=(topic(topic="orders", partitions=(found,)),),
    )


def stored(first: int, *values: bytes) -> bytes:
    columns = pa.record_batch({"value": pa.array(values, pa.binary())})
    return bytes(encode(columns, now_ms=1).assign(first, 0).buffer)


def test_reading_starts_inside_a_batch_and_passes_markers_over() -> None:
    end = marker(1, 0, commit=True, coordinator_epoch=0, timestamp_ms=1).assign(3, 0)
    answers = [
        fetch_answer(stored(0, b"a", b"b", b"c") + bytes(end.buffer), 6),
        fetch_answer(stored(4, b"d", b"e") + stored(6, b"f")[:65], 6),
        fetch_answer(b"", 6),
    ]
    asked: list[int] = []

    def answer(version: int, request: Any) -> Any:
        asked.append(request.topics[0].partitions[0].fetch_offset)
        return answers.pop(0)

    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        partition = TopicPartition("orders", 0)
        consumer = SimpleConsumer(cluster, {partition: 1})
        values = []
        for _ in range(3):
            for fetched in await consumer.poll(0.1):
                values += fetched.records.column("value").to_pylist()
        assert values == [b"b", b"c", b"d", b"e"]
        assert asked == [1, 4, 6]
        assert consumer.positions == consumer.high_watermarks == {partition: 6}

    simulate({ApiKey.FETCH: answer}, program)


def test_an_offset_that_is_not_there_is_told_with_those_that_are() -> None:
    topic = new(ApiKey.LIST_OFFSETS, "response", "ListOffsetsTopicResponse")
    partition = new(ApiKey.LIST_OFFSETS, "response", "ListOffsetsPartitionResponse")

    def offsets(version: int, request: Any) -> Any:
        asked = request.topics[0].partitions[0].timestamp
        found = partition(
            partition_index=0, error_code=ErrorCode.none, offset=3 if asked == -2 else 8
        )
        return new(ApiKey.LIST_OFFSETS, "response")(
            throttle_time=NO_TIME, topics=(topic(name="orders", partitions=(found,)),)
        )

    async def program(cluster: Cluster, producer: SimpleProducer) -> None:
        consumer = SimpleConsumer(cluster, {TopicPartition("orders", 0): 99})
        with pytest.raises(BrokerError, match="no offset 99; it holds the offsets from 3 up to 8"):
            await consumer.poll(0.1)

    refused = fetch_answer(b"", -1, ErrorCode.offset_out_of_range)
    simulate({ApiKey.FETCH: lambda *_: refused, ApiKey.LIST_OFFSETS: offsets}, program)
