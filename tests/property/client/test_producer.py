"""A producer's core against a broker that judges as the real one does, over a network that loses,
delays, doubles and reorders: acknowledged is in the log exactly once and in order, failed says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

import pytest

from onceflow.client.producer.accumulator import Accumulator, BatchLimits
from onceflow.client.producer.batch import Delivered, ProducerBatch
from onceflow.client.producer.idempotence import BatchResponse, ProduceVerdict, Sequences
from onceflow.producers.state import WrittenBatch, judge
from onceflow.producers.table import ProducerTable
from onceflow.records.batch import Codec, NewBatch
from onceflow.records.plain import read_records
from onceflow.types import TopicPartition
from onceflow.wire import LAST_EPOCH
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch

PARTITIONS: Final = [TopicPartition("t", 0), TopicPartition("t", 1)]
MAX_RECORDS: Final = 4
"""The broker finds a batch with more too large."""
POISON: Final = b"!"
BEFORE_APPEND: Final = [
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.CONCURRENT_TRANSACTIONS,
]
AFTER_APPEND: Final = [
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
]


class BrokerPartition:
    """A log and what it remembers of its producers; never forgets."""

    def __init__(self) -> None:
        self.table = ProducerTable()
        self.log: list[bytes] = []

    def produce(self, data: bytes) -> BatchResponse:
        batch = NewBatch.parse(bytearray(data))
        header = batch.header
        if header.record_count > MAX_RECORDS:
            return BatchResponse(ErrorCode.MESSAGE_TOO_LARGE)
        stored = batch.assign(len(self.log), 0)
        values = [record.value or b"" for record in read_records(stored)]
        if any(value.startswith(POISON) for value in values):
            return BatchResponse(ErrorCode.INVALID_RECORD)
        if header.producer_id >= 0:
            producer = self.table.find(header.producer_id)
            verdict = judge(producer, header, from_zero=False)
            if isinstance(verdict, WrittenBatch):
                return BatchResponse(ErrorCode.NONE, verdict.first_offset, -1, 0)
            if verdict is not ErrorCode.NONE:
                return BatchResponse(verdict, -1, -1, 0)
            self.table.apply(stored.header, None)
        base = len(self.log)
        self.log += values
        return BatchResponse(ErrorCode.NONE, base, -1, 0)


class Request:
    """A copy of what was sent. The client may have given up on it; it arrives all the same."""

    def __init__(self, batch: ProducerBatch) -> None:
        self.batch = batch
        self.data = bytes(batch.buffer)
        self.is_awaited = True


@dataclass(frozen=True)
class Sent:
    partition: TopicPartition
    value: bytes
    batch: ProducerBatch
    index: int


class World:
    """A producer, a broker, and everything that can go wrong between them."""

    def __init__(self, rand: Random, *, idempotent: bool, transactional: bool) -> None:
        self.rand = rand
        self.now = 0.0
        self.brokers = {partition: BrokerPartition() for partition in PARTITIONS}
        self.network: list[Request] = []
        self.records: list[Sent] = []
        self.known_failed: set[ProducerBatch] = set()
        self.doubled: set[ProducerBatch] = set()
        """Of these a copy that nobody sent stays under way: a refusal is not the last word."""
        self.verdicts: set[ProduceVerdict] = set()
        self.sequences = Sequences(idempotent=idempotent, transactional=transactional)
        limits = BatchLimits(
            batch_size=61 + 20 * rand.choice([1, 3, 7]),
            linger=rand.choice([0.0, 2.0]),
            delivery_timeout=rand.choice([15.0, 60.0, 10_000.0]),
            codec=rand.choice([Codec.NONE, Codec.LZ4]),
        )
        self.core = Accumulator(limits, self.sequences)
        self.next_id = 7
        self.new_producer(epoch=rand.choice([0, LAST_EPOCH - 1]))
        self.bad = rand.choice([0.05, 0.3])
        """How often something goes wrong."""

    def new_producer(self, epoch: int = 0) -> None:
        if self.sequences.idempotent:
            self.sequences.adopt(ProducerIdAndEpoch(self.next_id, epoch))
            self.next_id += 1

    # --- what may happen ----------------------------------------------------------------------

    def step(self) -> None:
        kind = self.rand.random()
        if kind < 0.35:
            self.append()
        elif kind < 0.6:
            self.drain()
        elif kind < 0.9:
            self.arrive()
        elif kind < 0.9 + self.bad / 4:
            self.give_up()
        else:
            self.pass_time(self.rand.choice([0.5, 1.0, 3.0]))

    def append(self) -> None:
        partition = self.rand.choice(PARTITIONS)
        poison = POISON if self.rand.random() < self.bad / 10 else b""
        value = poison + b"%d" % len(self.records)
        batch, index = self.core.append(partition, None, value, 1000, (), self.now)
        self.records.append(Sent(partition, value, batch, index))

    def drain(self) -> None:
        if self.sequences.needs_producer_id:
            self.new_producer()
        partitions = self.core.ready(self.now)
        self.rand.shuffle(partitions)
        for batch in self.core.drain(partitions, self.rand.choice([100, 1000]), self.now):
            self.network.append(Request(batch))

    def arrive(self) -> None:
        """A request reaches the broker: mostly the first, sometimes twice, sometimes refused."""
        if not self.network:
            return
        late = self.rand.random() < self.bad
        request = self.network[self.rand.randrange(len(self.network)) if late else 0]
        if self.rand.random() > self.bad / 2:
            self.network.remove(request)
        else:
            self.doubled.add(request.batch)
        broker = self.brokers[request.batch.partition]
        fate = self.rand.random()
        if fate < self.bad / 3:
            answer = BatchResponse(self.rand.choice(BEFORE_APPEND))
        else:
            answer = broker.produce(request.data)
            if fate < 2 * self.bad / 3 and answer.code == ErrorCode.NONE:
                answer = BatchResponse(self.rand.choice(AFTER_APPEND))
        if not request.is_awaited:
            return
        request.is_awaited = False
        if self.rand.random() < self.bad / 2:
            self.core.requeue(request.batch, self.now + 1, in_doubt=True)
        else:
            self.answer(request.batch, answer)

    def answer(self, batch: ProducerBatch, answer: BatchResponse) -> None:
        verdict = self.core.answered(batch, answer, self.now + self.rand.choice([0.0, 1.0]))
        self.verdicts.add(verdict)
        if verdict in (ProduceVerdict.REFUSED, ProduceVerdict.ABORTABLE, ProduceVerdict.FATAL):
            self.fail(batch)
        if verdict is ProduceVerdict.ABORTABLE:
            self.abort()

    def give_up(self) -> None:
        """The connection of some request breaks; the request itself may still arrive."""
        awaited = [request for request in self.network if request.is_awaited]
        if awaited:
            request = self.rand.choice(awaited)
            request.is_awaited = False
            self.core.requeue(request.batch, self.now + 1, in_doubt=True)

    def pass_time(self, by: float) -> None:
        self.now += by
        for batch in self.core.expired(self.now):
            self.fail(batch)
            if self.sequences.transactional and batch.attempts:
                self.abort()

    def fail(self, batch: ProducerBatch) -> None:
        self.core.fail(batch, TimeoutError())
        if not batch.in_doubt and batch not in self.doubled:
            self.known_failed.add(batch)

    def abort(self) -> None:
        """All of the transaction has failed; the next one has an epoch of its own."""
        for batch in self.core.incomplete():
            self.fail(batch)
        producer = self.sequences.producer
        assert producer is not None
        if producer.epoch >= LAST_EPOCH - 1:
            self.new_producer()
        else:
            self.sequences.adopt(producer._replace(epoch=producer.epoch + 1))

    def heal(self) -> None:
        """Nothing goes wrong any more: everything has to end."""
        self.bad = 0.0
        self.core.flushing += 1
        for _ in range(2000):
            if not self.core.incomplete() and not self.network:
                return
            self.drain()
            self.arrive()
            self.pass_time(1.0)
        raise AssertionError(f"stuck: {self.core.incomplete()}")

    # --- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        assert self.core.used == 0
        acknowledged: dict[TopicPartition, list[int]] = {each: [] for each in PARTITIONS}
        for sent in self.records:
            batch, index = sent.batch.locate(sent.index)
            log = self.brokers[sent.partition].log
            copies = log.count(sent.value)
            if isinstance(batch.outcome, Delivered):
                offset = batch.outcome.offset_of(index)
                assert log[offset] == sent.value
                assert copies == 1 or not self.sequences.idempotent
                acknowledged[sent.partition].append(offset)
            else:
                assert isinstance(batch.outcome, TimeoutError)
                assert copies <= 1 or not self.sequences.idempotent
                assert copies == 0 or batch not in self.known_failed
        if self.sequences.idempotent:
            for offsets in acknowledged.values():
                assert offsets == sorted(offsets)


def run(seed: int, *, idempotent: bool = True, transactional: bool = False) -> World:
    world = World(Random(seed), idempotent=idempotent, transactional=transactional)
    for _ in range(world.rand.randint(20, 250)):
        world.step()
        for partition in PARTITIONS:
            assert len(world.sequences.of(partition).in_flight) <= 5 + MAX_RECORDS
    world.heal()
    world.check()
    return world


@pytest.mark.parametrize("block", range(4))
def test_an_idempotent_producer_neither_loses_nor_doubles_nor_reorders(block: int) -> None:
    seen: set[ProduceVerdict] = set()
    for seed in range(block * 150, block * 150 + 150):
        seen |= run(seed).verdicts
    assert seen == set(ProduceVerdict) - {ProduceVerdict.ABORTABLE, ProduceVerdict.FATAL}


@pytest.mark.parametrize("block", range(2))
def test_a_transactional_producer_fails_loudly_and_never_renumbers(block: int) -> None:
    seen: set[ProduceVerdict] = set()
    for seed in range(block * 50, block * 50 + 50):
        seen |= run(seed, transactional=True).verdicts
    assert {
        ProduceVerdict.DELIVERED,
        ProduceVerdict.RETRY,
        ProduceVerdict.ABORTABLE,
        ProduceVerdict.SPLIT,
    } <= seen
    assert not seen & {ProduceVerdict.RESTART, ProduceVerdict.REFUSED}


def test_without_idempotence_records_are_doubled_but_not_lost() -> None:
    worlds = [run(seed, idempotent=False) for seed in range(40)]
    doubled = sum(
        world.brokers[sent.partition].log.count(sent.value) > 1
        for world in worlds
        for sent in world.records
    )
    assert doubled
