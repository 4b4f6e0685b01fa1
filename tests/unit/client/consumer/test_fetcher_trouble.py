"""Reading while things go wrong: leaders change, connections break, records are lost or damaged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.consumer.fetch_state import STAGES, FetchEvent, FetchStage
from onceflow.client.errors.consumer import LogTruncated, RecordsUnreadable
from onceflow.client.errors.requests import AnswerMalformed, BrokerError, BrokerUnreachable
from onceflow.client.net.cluster import Cluster
from onceflow.client.net.cluster_settings import ClusterSettings
from onceflow.client.net.retry import RetryPolicy
from onceflow.records.batch import StoredBatch
from onceflow.records.plain import PlainRecord, write_records
from onceflow.testing.world import World, run
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from tests.unit.client.consumer.simulated_readers import P0, P1, fetcher, values
from tests.unit.client.scripted_broker import (
    ADDRESS,
    CLOSE,
    HOST,
    NO_TIME,
    PORT,
    Answer,
    FakeBroker,
    listen,
    metadata,
    new,
)

ANSWER_S = 0.05
Program = Callable[[World, Cluster], Awaitable[None]]
PARTITION = new(ApiKey.FETCH, "response", "PartitionData")
TOPIC = new(ApiKey.FETCH, "response", "FetchableTopicResponse")


class Log:
    """A partition as one broker has it; `asked` are the offsets that were fetched from it."""

    def __init__(self, *values: bytes, epoch: int = 0) -> None:
        self.epoch = epoch
        self.batches: list[bytes] = []
        self.asked: list[int] = []
        self.trouble: list[Any] = []
        """What the next fetches are answered with instead."""
        for value in values:
            self.append(value)

    def append(self, value: bytes) -> None:
        batch = write_records([PlainRecord(None, value)], 1)
        self.batches.append(bytes(batch.assign(len(self.batches), self.epoch).buffer))

    def fetch(self, version: int, request: Any) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        self.asked.append(offset)
        if self.trouble:
            found = self.trouble.pop(0)
            return refused(found) if isinstance(found, ErrorCode) else found
        if offset > len(self.batches):
            return refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        return answered(records=b"".join(self.batches[offset:]), high_watermark=len(self.batches))

    def end_of_epoch(self, version: int, request: Any) -> Any:
        asked = request.topics[0].partitions[0].leader_epoch
        epochs = [StoredBatch.parse(batch).header.leader_epoch for batch in self.batches]
        end = new(ApiKey.OFFSET_FOR_LEADER_EPOCH, "response", "EpochEndOffset")
        topic = new(ApiKey.OFFSET_FOR_LEADER_EPOCH, "response", "OffsetForLeaderTopicResult")
        found = end(
            error_code=ErrorCode.NONE,
            partition=0,
            leader_epoch=asked,
            end_offset=sum(epoch <= asked for epoch in epochs),
        )
        return new(ApiKey.OFFSET_FOR_LEADER_EPOCH, "response")(
            throttle_time=NO_TIME, topics=(topic(topic="orders", partitions=(found,)),)
        )

    def list_offsets(self, version: int, request: Any) -> Any:
        topic = new(ApiKey.LIST_OFFSETS, "response", "ListOffsetsTopicResponse")
        partition = new(ApiKey.LIST_OFFSETS, "response", "ListOffsetsPartitionResponse")
        end = partition(partition_index=0, error_code=ErrorCode.NONE, offset=len(self.batches))
        return new(ApiKey.LIST_OFFSETS, "response")(
            throttle_time=NO_TIME, topics=(topic(name="orders", partitions=(end,)),)
        )

    def answers(self) -> dict[ApiKey, Answer]:
        return {
            ApiKey.FETCH: self.fetch,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.end_of_epoch,
            ApiKey.LIST_OFFSETS: self.list_offsets,
        }


def answered(**fields: Any) -> Any:
    part = {"error_code": ErrorCode.NONE, "high_watermark": -1, "records": b"", **fields}
    found = PARTITION(**{"partition_index": 0, "aborted_transactions": None, **part})
    return new(ApiKey.FETCH, "response")(
        throttle_time=NO_TIME,
        error_code=ErrorCode.NONE,
        responses=(TOPIC(topic="orders", partitions=(found,)),),
    )


def refused(error: ErrorCode) -> Any:
    return answered(error_code=error)


class SlowBroker(FakeBroker):
    """Takes its time for every answer, as a broker does that has nothing to send yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(_Slow(transport))


class _Slow(asyncio.Transport):
    def __init__(self, transport: Any) -> None:
        super().__init__()
        self._transport = transport

    def write(self, data: Any) -> None:
        asyncio.get_running_loop().call_later(ANSWER_S, self._transport.write, data)

    def close(self) -> None:
        self._transport.close()


class Brokers:
    """Two of them, each with its own copy of the log; `leader` is what both say."""

    def __init__(self, first: Log, second: Log | None = None) -> None:
        self.logs = {1: first, 2: second or Log()}
        self.leader = 1
        self.seen: list[tuple[ApiKey, int]] = []

    def metadata(self, *_: Any) -> Any:
        brokers = {1: ADDRESS, 2: BrokerAddress(HOST, PORT + 1)}
        return metadata({"orders": {0: self.leader}}, brokers)

    async def start(self, world: World) -> None:
        host = world.net.host(HOST)
        for node_id, log in self.logs.items():
            answers = {ApiKey.METADATA: self.metadata, **log.answers()}
            await host.listen(
                "0.0.0.0", PORT + node_id - 1, partial(SlowBroker, answers, self.seen)
            )


def simulate(brokers: Brokers, program: Program) -> None:
    async def main(world: World) -> None:
        await brokers.start(world)
        cluster = Cluster(
            [ADDRESS],
            ClusterSettings(retry=RetryPolicy(total_s=5), request_timeout_s=30),
            net=world.net.host("client"),
            rand=world.rand.fork("client"),
        )
        async with cluster:
            await program(world, cluster)

    run(1, main)


def test_every_stage_says_what_becomes_of_it() -> None:
    assert STAGES.keys() == {(stage, event) for stage in FetchStage for event in FetchEvent}


@pytest.mark.parametrize(
    "trouble", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, CLOSE]
)
def test_reading_goes_on_at_the_new_leader(trouble: Any) -> None:
    brokers = Brokers(Log(b"a", b"b"), Log(b"a", b"b", b"c"))

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert [each.value for each in await reader.next_records(1)] == [b"a", b"b"]
            brokers.logs[1].trouble = [trouble]
            brokers.leader = 2
            assert await values(reader, wait_s=1) == [b"c"]
            assert brokers.logs[2].asked[:2] == [2, 3]

    simulate(brokers, program)


def test_a_broker_that_hangs_keeps_nobody_from_the_others() -> None:
    """Also when it is the one that is asked for leaders, and the reader is slow."""
    brokers = Brokers(Log(), Log(*(b"%d" % number for number in range(20))))
    brokers.leader = 2
    is_hanging = False

    def lead(*_: Any) -> Any:
        both = {1: ADDRESS, 2: BrokerAddress(HOST, PORT + 1)}
        return None if is_hanging else metadata({"orders": {0: 2, 1: 1}}, both)

    def hang(*_: Any) -> Any:
        nonlocal is_hanging
        is_hanging = True
        return answered(partition_index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def program(world: World, cluster: Cluster) -> None:
        little = {"fetch_queued_max_bytes": 1, "max_partition_fetch_bytes": 1}
        async with fetcher(world, cluster, {P0: 0, P1: 0}, **little) as reader:
            found: list[bytes | None] = []
            began = world.clock.monotonic()
            while len(found) < 20:
                found += [each.value for each in await reader.next_records(5, max_records=1)]
                assert world.clock.monotonic() - began < 10
            assert found == [b"%d" % number for number in range(20)]
            assert is_hanging

    brokers.metadata = lead  # type: ignore[method-assign]
    first, second = brokers.logs[1], brokers.logs[2]
    first.fetch = hang  # type: ignore[assignment, method-assign]
    honest = second.fetch
    second.fetch = lambda *request: _first_batch(honest(*request))  # type: ignore[method-assign]
    simulate(brokers, program)


def _first_batch(answer: Any) -> Any:
    """Brokers send less than there is to those who have little room."""
    found = answer.responses[0].partitions[0]
    records = bytes(found.records)
    size = 12 + int.from_bytes(records[8:12], "big") if records else 0
    return answered(records=records[:size], high_watermark=found.high_watermark)


def test_an_answer_that_is_refused_for_a_moment_is_asked_for_again() -> None:
    brokers = Brokers(Log(b"a"))
    brokers.logs[1].trouble = [ErrorCode.UNKNOWN_LEADER_EPOCH] * 3

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert await values(reader) == [b"a"]
            assert brokers.logs[1].asked[:4] == [0, 0, 0, 0]

    simulate(brokers, program)


def test_trouble_that_lasts_is_told_and_the_next_call_tries_again() -> None:
    brokers = Brokers(Log(b"a"))
    brokers.logs[1].trouble = [ErrorCode.UNKNOWN_LEADER_EPOCH] * 1000

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert await reader.next_table(3) is None
            with pytest.raises(BrokerError, match=r"orders-0.*UNKNOWN_LEADER_EPOCH"):
                await reader.next_table(10)
            assert await reader.next_table(0.1) is None
            brokers.logs[1].trouble = []
            assert await values(reader) == [b"a"]

    simulate(brokers, program)


def test_what_will_not_change_by_itself_is_told_at_once() -> None:
    brokers = Brokers(Log(b"a"))
    brokers.logs[1].trouble = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 0}) as reader:
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                await reader.next_table(0.5)
            assert await values(reader) == [b"a"]

    simulate(brokers, program)


def test_a_broker_that_is_gone_is_told_when_patience_is_over() -> None:
    async def main(world: World) -> None:
        await listen(world.net.host(HOST), {ApiKey.METADATA: gone})
        cluster = Cluster(
            [ADDRESS],
            ClusterSettings(retry=RetryPolicy(total_s=5), connect_timeout_s=1),
            net=world.net.host("client"),
            rand=world.rand.fork("client"),
        )
        async with cluster, fetcher(world, cluster, {P0: 0}) as reader:
            with pytest.raises(BrokerUnreachable, match="nothing listens at broker:9999"):
                await reader.next_table(20)

    def gone(*_: Any) -> Any:
        return metadata({"orders": {0: 2}}, {1: ADDRESS, 2: BrokerAddress(HOST, 9999)})

    run(1, main)


def test_records_that_a_new_leader_never_had_are_told_until_the_reader_seeks() -> None:
    brokers = Brokers(Log(b"a", b"b", b"lost"), Log(b"a", b"b"))
    for value in (b"other", b"more"):
        brokers.logs[2].epoch = 1
        brokers.logs[2].append(value)

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert len(await reader.next_records(1)) == 3
            await change_leader(brokers)
            for _ in range(2):
                with pytest.raises(LogTruncated, match="read up to offset 3") as told:
                    await reader.next_table(2)
                assert (told.value.position, told.value.end_offset) == (3, 2)
            assert reader.position(P0) == 3
            reader.seek(P0, told.value.end_offset)
            assert await values(reader) == [b"other", b"more"]

    simulate(brokers, program)


def test_reading_may_be_told_to_go_on_from_what_the_logs_have_in_common(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = Brokers(Log(b"a", b"b", b"lost"), Log(b"a", b"b"))
    brokers.logs[2].epoch = 1
    brokers.logs[2].append(b"other")

    async def program(world: World, cluster: Cluster) -> None:
        settings = {"on_log_truncation": "reset"}
        async with fetcher(world, cluster, {P0: 0}, **settings) as reader:
            assert len(await reader.next_records(1)) == 3
            await change_leader(brokers)
            assert await values(reader) == [b"other"]

    with caplog.at_level(logging.WARNING):
        simulate(brokers, program)
    assert "only what is below 2" in caplog.text


def test_what_was_lost_before_anybody_saw_it_is_read_anew() -> None:
    brokers = Brokers(Log(b"a", b"b", b"lost"), Log(b"a", b"b"))
    brokers.logs[2].epoch = 1
    brokers.logs[2].append(b"other")

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 0}) as reader:
            first = await reader.next_records(1, max_records=2)
            await change_leader(brokers)
            rest = await values(reader)
            assert [*(each.value for each in first), *rest] == [b"a", b"b", b"other"]

    simulate(brokers, program)


async def change_leader(brokers: Brokers) -> None:
    """The fetcher, which goes on by itself, hears of it before it is asked for more."""
    brokers.leader = 2
    brokers.logs[1].trouble = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100
    await asyncio.sleep(1)


def test_a_lost_place_does_not_lose_what_was_fetched_before() -> None:
    log = Log(b"a", b"b", b"c")
    log.trouble = [
        answered(records=b"".join(log.batches[:2]), high_watermark=2),
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ]

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 0}) as reader:
            first = await reader.next_records(1, max_records=1)
            await asyncio.sleep(1)
            second = await reader.next_records(1)
            assert [each.value for each in (*first, *second)] == [b"a", b"b"]
            log.append(b"d")
            assert await reader.next_records(0) == []
            await asyncio.sleep(1)
            assert reader.position(P0) == 4  # the latest when it was looked for
            log.append(b"e")
            assert await values(reader, wait_s=1) == [b"e"]

    simulate(Brokers(log), program)


def test_damage_is_told_behind_what_is_sound_and_read_again() -> None:
    log = Log(b"a", b"b")
    damaged = bytearray(log.batches[1])
    damaged[-1] ^= 1
    log.trouble = [answered(records=log.batches[0] + bytes(damaged), high_watermark=2)]

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 0}) as reader:
            assert [each.value for each in await reader.next_records(1)] == [b"a"]
            with pytest.raises(RecordsUnreadable, match=r"orders-0.*offset 1.*CRC") as told:
                await reader.next_records(1)
            assert (told.value.offset, reader.position(P0)) == (1, 1)
            assert [each.value for each in await reader.next_records(1)] == [b"b"]

    simulate(Brokers(log), program)


def test_records_that_cannot_be_decoded_are_told_and_nothing_behind_them_is_delivered() -> None:
    log = Log(b"a", b"b", b"c")
    batch = write_records([PlainRecord(None, b"x")], 1)
    body = bytearray(batch.buffer)
    body[61] ^= 2  # the length of its record
    sealed = resealed(body)
    log.batches[1] = bytes(StoredBatch.parse(sealed).buffer)

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 1}) as reader:
            for _ in range(2):
                await asyncio.sleep(1)  # until it has come
                assert reader.buffer.prepare(None) is None, "who asks is told"
                with pytest.raises(RecordsUnreadable, match="offset 1"):
                    await reader.next_table(1)
            reader.seek(P0, 2)
            assert await values(reader) == [b"c"]

    simulate(Brokers(log), program)


def resealed(body: bytearray) -> bytes:
    from onceflow.checksum import crc32c

    body[0:8] = (1).to_bytes(8, "big")
    body[17:21] = crc32c(memoryview(body)[21:]).to_bytes(4, "big")
    return bytes(body)


def test_an_answer_that_is_none_is_told() -> None:
    log = Log(b"a")
    log.trouble = [b"\x00\x00"]

    async def program(world: World, cluster: Cluster) -> None:
        async with fetcher(world, cluster, {P0: 0}) as reader:
            with pytest.raises(AnswerMalformed, match="answers FETCH version 12 wrongly"):
                await reader.next_table(1)
            assert await values(reader) == [b"a"]

    simulate(Brokers(log), program)
