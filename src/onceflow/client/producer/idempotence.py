"""Idempotence on the producer's side: which batch may be sent, with which sequence number, and what
the response means for it.

Four rules, for a leader that remembers its producers:
- A batch gets its sequence number once, when it is first sent. Only a new pair of producer id and
  epoch gives it another, and then no request with the old number is in flight.
- A batch that may be in the log under an old number is never sent under a new one: it could be
  written twice.
- Until the first batch of a pair in a partition is acknowledged, no other is sent there: a leader
  that does not know the producer accepts any number, and would take the second batch for the
  first. Where every transaction has its own epoch, leaders insist on 0, and no batch has to wait.
- A batch that failed leaves a gap, which stops new batches until a later one is acknowledged or
  the pair is a new one. In a transaction the transaction has to end first.

`worker.partition_queue` follows the same rules with far less: its transaction only aborts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from onceflow.client.errors import Action, action, outcome_of
from onceflow.client.producer.batch import NOBODY, ProducerBatch
from onceflow.errors import InvariantViolated
from onceflow.records import NO_SEQUENCE, last_sequence, next_sequence
from onceflow.types import TopicPartition
from onceflow.wire import LAST_EPOCH, MAX_IN_FLIGHT, ApiKey, ErrorCode, ProducerIdAndEpoch

NO_OFFSET: Final = -1
_HALF: Final = 1 << 30


class BatchResponse(NamedTuple):
    """The leader's response for one batch."""

    code: int
    base_offset: int = NO_OFFSET
    timestamp: int = -1
    log_start_offset: int = NO_OFFSET


class ProduceVerdict(Enum):
    """What to do with a batch after a response."""

    DELIVERED = "it is in the log"
    RETRY = "send the same bytes again"
    RESTART = "send it again, with all that follows it, under a new epoch from sequence 0"
    SPLIT = "send it in two halves"
    REFUSED = "it has failed, the producer goes on"
    ABORTABLE = "it has failed, and the transaction with it"
    FATAL = "it has failed, and the producer can do nothing more"
    LATE = "it was given up before the answer came"


class PartitionSequences:
    """The sequence numbers of one partition, and the batches that have one and no outcome."""

    __slots__ = (
        "forgotten",
        "in_flight",
        "last_acked_offset",
        "last_acked_sequence",
        "must_restart",
        "next_ordinal",
        "next_sequence",
        "producer",
        "unresolved",
    )

    def __init__(self) -> None:
        self.in_flight: list[ProducerBatch] = []
        """In the order of their numbers; sent, or waiting for a retry."""
        self.begin(None)

    def begin(self, producer: ProducerIdAndEpoch | None, first: int = 0) -> None:
        """Starts at `first` under another pair; batches in flight keep their old numbers."""
        self.producer = producer
        self.next_sequence = first
        self.next_ordinal = 0
        self.last_acked_sequence = first - 1 if first else NO_SEQUENCE
        self.last_acked_offset = NO_OFFSET
        self.unresolved = False
        """A batch that had a number has failed, and no later one has been acknowledged."""
        self.must_restart = False
        self.forgotten = False
        """The leader has refused the very next number: it has lost the producer's state."""

    @property
    def has_outstanding(self) -> bool:
        return any(batch.is_outstanding for batch in self.in_flight)

    def is_next(self, batch: ProducerBatch) -> bool:
        """Whether the batch follows the one that was acknowledged last."""
        return batch.base_sequence == _after(self.last_acked_sequence)

    def number(self, batch: ProducerBatch) -> int:
        """Gives the batch the next numbers, one for each record; returns the first."""
        base = self.next_sequence
        batch.ordinal = self.next_ordinal
        self.next_sequence = next_sequence(base, batch.count)
        self.next_ordinal += 1
        return base

    def acknowledge(self, batch: ProducerBatch, base_offset: int) -> None:
        """Notes that the batch's numbers are in the log."""
        last = last_sequence(batch.base_sequence, batch.count - 1)
        if batch.producer != self.producer or not batch.is_sequenced:
            return
        before = self.last_acked_sequence
        # Sequence numbers wrap around; an earlier batch may be acknowledged after a later one.
        if before == NO_SEQUENCE or 0 < (last - before) % (2 * _HALF) < _HALF:
            self.last_acked_sequence = last
            if base_offset >= 0:
                self.last_acked_offset = base_offset + batch.count - 1

    def settle(self) -> None:
        """Decides, when a batch has left the flight and none is left, whether a gap has closed or
        only a new pair can close it."""
        if self.unresolved and not self.in_flight:
            self.unresolved = self.next_sequence != _after(self.last_acked_sequence)
            self.must_restart = self.unresolved


def _after(sequence: int) -> int:
    return 0 if sequence == NO_SEQUENCE else next_sequence(sequence, 1)


class Sequences:
    """The sequence numbers of one producer: its producer id and epoch, and the state of each
    partition.

    Without idempotence there are no numbers, and only the limit of batches in flight applies.
    """

    def __init__(
        self,
        *,
        idempotent: bool = True,
        transactional: bool = False,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        if transactional and not idempotent:
            raise InvariantViolated("a transactional producer is idempotent")
        self.idempotent = idempotent
        self.transactional = transactional
        self.producer: ProducerIdAndEpoch | None = None
        self._first_is_zero = False
        """Leaders accept only 0 as the first number of a pair."""
        self._max_in_flight = max_in_flight
        self._partitions: dict[TopicPartition, PartitionSequences] = {}

    def of(self, partition: TopicPartition) -> PartitionSequences:
        """The state of a partition; a new one if there is none."""
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = PartitionSequences()
        return state

    # --- who writes ---------------------------------------------------------------------------

    @property
    def needs_producer_id(self) -> bool:
        """Whether no new batch can be sent before the response to InitProducerId."""
        return self.idempotent and self.producer is None

    @property
    def writer(self) -> ProducerIdAndEpoch:
        """The producer id and epoch that go into batches."""
        return self.producer or NOBODY

    @property
    def has_gap(self) -> bool:
        """Whether a partition cannot continue under this pair: after an aborted transaction the
        next one needs another epoch."""
        return any(
            (state.unresolved or state.must_restart) and state.producer == self.producer
            for state in self._partitions.values()
        )

    def adopt(
        self,
        producer: ProducerIdAndEpoch,
        next_sequences: Mapping[TopicPartition, int] | None = None,
        *,
        has_own_epoch: bool = False,
    ) -> None:
        """Takes the producer id and epoch that a broker assigned. Under a new pair each partition
        starts at 0, once no batch of the old one is in flight; under the same pair it continues.

        `next_sequences` is where another process has left off under this very pair;
        `has_own_epoch` says that the pair is for one transaction only.
        """
        self.producer = producer
        self._first_is_zero = has_own_epoch
        for partition, first in (next_sequences or {}).items():
            self.of(partition).begin(producer, first)

    def next_sequences(self) -> dict[TopicPartition, int]:
        """The numbers with which another process would have to continue under this pair."""
        return {
            partition: state.next_sequence
            for partition, state in self._partitions.items()
            if state.producer == self.producer and state.producer is not None
        }

    # --- sending ------------------------------------------------------------------------------

    def may_send(self, state: PartitionSequences, batch: ProducerBatch) -> bool:
        """Whether the first waiting batch of the partition may be sent now."""
        in_flight = state.in_flight
        if not self.idempotent:
            return batch in in_flight or len(in_flight) < self._max_in_flight
        if state.must_restart:
            return self._may_restart(state)
        if batch.is_sequenced:
            return in_flight[0] is batch
        if self.producer is None or state.unresolved:
            return False
        if not in_flight:
            return True
        # A leader remembers a producer's last five batches only. So the window of five is counted
        # from the earliest batch without an outcome, and acknowledged batches behind it count too.
        # Otherwise they would push it out of the leader's memory if it is there, and its retry
        # would be refused as out of sequence instead of recognized as a duplicate.
        return (
            state.producer == self.producer
            and (self._first_is_zero or state.last_acked_sequence != NO_SEQUENCE)
            and state.next_ordinal - in_flight[0].ordinal < self._max_in_flight
        )

    def _may_restart(self, state: PartitionSequences) -> bool:
        # Not while a request is outstanding: its batch could still be written under the old number,
        # and again under the new one.
        return (
            not (self.transactional and state.producer == self.producer)
            and self.producer is not None
            and not state.has_outstanding
        )

    def number(self, state: PartitionSequences, batch: ProducerBatch) -> int:
        """Gives a batch its numbers when it is first sent; it is in flight from now on."""
        state.in_flight.append(batch)
        if not self.idempotent:
            return NO_SEQUENCE
        if state.producer != self.producer:
            state.begin(self.producer)
        return state.number(batch)

    def restart(self, state: PartitionSequences) -> bool:
        """Renumbers all batches in flight from 0 under a newer pair; False if a broker has to
        assign that pair first."""
        if state.producer == self.producer and self.producer is not None:
            producer_id, epoch = self.producer
            self.producer = (
                ProducerIdAndEpoch(producer_id, epoch + 1) if epoch < LAST_EPOCH else None
            )
        if self.producer is None:
            return False
        state.begin(self.producer)
        for batch in state.in_flight:
            batch.renumber(self.producer, state.number(batch))
        return True

    # --- answers ------------------------------------------------------------------------------

    def decide(
        self, state: PartitionSequences, batch: ProducerBatch, answer: BatchResponse
    ) -> ProduceVerdict:
        """What a response means for a batch in flight. Changes nothing but `forgotten`: the caller
        acts on it."""
        code = answer.code
        if code == ErrorCode.NONE:
            return ProduceVerdict.DELIVERED
        if code in _TOO_LARGE and batch.count > 1:
            return ProduceVerdict.SPLIT
        if batch.is_sequenced and code in _SEQUENCE_ERRORS:
            return self._decide_sequence(state, batch, answer)
        verdict = _VERDICTS[action(code, ApiKey.PRODUCE)]
        if verdict is ProduceVerdict.ABORTABLE and not self.transactional:
            return ProduceVerdict.REFUSED
        return verdict

    def _decide_sequence(
        self, state: PartitionSequences, batch: ProducerBatch, answer: BatchResponse
    ) -> ProduceVerdict:
        if answer.code == ErrorCode.UNKNOWN_PRODUCER_ID and answer.log_start_offset == NO_OFFSET:
            return ProduceVerdict.RETRY  # the broker has not looked into the log yet
        if state.in_flight[0] is not batch:
            return ProduceVerdict.RETRY  # refused because of the batch before: that one goes first
        if not state.unresolved:
            if not state.is_next(batch):
                return ProduceVerdict.RETRY
            state.forgotten = True
        if self.transactional:
            return ProduceVerdict.ABORTABLE
        # Behind a gap the leader had to refuse the batch, so the batch is not in the log. But a
        # leader that has lost the producer's state would also refuse a batch that it wrote before,
        # in an attempt without a response: under a new number it could be written twice.
        return (
            ProduceVerdict.REFUSED if batch.in_doubt and state.forgotten else ProduceVerdict.RESTART
        )

    def leave(self, state: PartitionSequences, batch: ProducerBatch, *, delivered: bool) -> None:
        """Takes a batch with an outcome out of the flight. One that failed leaves a gap."""
        if batch not in state.in_flight:
            return
        state.in_flight.remove(batch)
        if not delivered and batch.is_sequenced and batch.producer == state.producer:
            state.unresolved = True
        state.settle()


def leaves_doubt(answer: BatchResponse) -> bool:
    """Whether the batch may be in the log despite the error."""
    return outcome_of(answer.code, ApiKey.PRODUCE) == "unknown"


_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_SEQUENCE_ERRORS: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)
_VERDICTS: Final[Mapping[Action, ProduceVerdict]] = {
    Action.RETRY: ProduceVerdict.RETRY,
    Action.REFRESH: ProduceVerdict.RETRY,
    Action.DONE: ProduceVerdict.DELIVERED,
    Action.ABORT: ProduceVerdict.ABORTABLE,
    Action.FAIL: ProduceVerdict.ABORTABLE,
    Action.FATAL: ProduceVerdict.FATAL,
}
