"""A producer's core whose batches are sent and answered by hand."""

from __future__ import annotations

from onceflow.client.producer.accumulator import Accumulator, BatchLimits
from onceflow.client.producer.batch import RECORD_OVERHEAD, ProducerBatch
from onceflow.client.producer.idempotence import (
    BatchResponse,
    PartitionSequences,
    ProduceVerdict,
    Sequences,
)
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode as E
from onceflow.wire.transactions import ProducerIdAndEpoch

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


PAIR = ProducerIdAndEpoch(7, 3)


NEWER = ProducerIdAndEpoch(7, 4)


GAP = BatchResponse(E.OUT_OF_ORDER_SEQUENCE_NUMBER, log_start_offset=0)


class Producer:
    """Batches of two records each, and answers to them."""

    def __init__(self, *, transactional: bool = False, pair: ProducerIdAndEpoch = PAIR) -> None:
        self.sequences = Sequences(transactional=transactional)
        self.sequences.adopt(pair)
        limits = BatchLimits(batch_size=61 + 2 * (RECORD_OVERHEAD + 1), linger=0.0)
        self.core = Accumulator(limits, self.sequences)
        self.now = 0.0

    def state(self, partition: TopicPartition = P0) -> PartitionSequences:
        return self.sequences.of(partition)

    def put(self, batches: int, partition: TopicPartition = P0) -> list[ProducerBatch]:
        made = []
        for _ in range(batches):
            for _ in range(2):
                batch, _ = self.core.append(partition, None, b"x", 1000, (), self.now)
            made.append(batch)
        return made

    def send(self, partition: TopicPartition = P0) -> list[ProducerBatch]:
        """All that may be sent, one request after the other."""
        gone: list[ProducerBatch] = []
        while batches := self.core.drain([partition], 1 << 20, self.now):
            gone += batches
        return gone

    def answer(self, batch: ProducerBatch, answer: BatchResponse) -> ProduceVerdict:
        verdict = self.core.answered(batch, answer, 0.0)
        if verdict in (ProduceVerdict.REFUSED, ProduceVerdict.ABORTABLE):
            self.core.fail(batch, ValueError())
        return verdict

    def has_gap(self) -> bool:
        return self.sequences.has_gap

    def ack(self, batch: ProducerBatch, offset: int = 100) -> None:
        assert self.answer(batch, BatchResponse(0, offset)) is ProduceVerdict.DELIVERED

    def lose(self, batch: ProducerBatch) -> None:
        self.core.requeue(batch, 0.0, in_doubt=True)

    def started(self, batches: int, partition: TopicPartition = P0) -> list[ProducerBatch]:
        """A first batch is acknowledged; of the others as many as may are sent."""
        self.put(1, partition)
        self.ack(self.send(partition)[0])
        made = self.put(batches, partition)
        assert self.send(partition) == made[:5]
        return made


def numbers(batches: list[ProducerBatch]) -> list[tuple[int, int]]:
    return [(batch.producer.epoch, batch.base_sequence) for batch in batches]
