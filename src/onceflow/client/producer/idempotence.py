"""Idempotence on the producer's side: which batch may be sent, under which number, and what an
answer means for it.

Four promises, for a broker that remembers its producers:
- numbers are given once, when a batch is first sent; only a new pair of producer id and epoch ever
  gives others, and then no request with the old ones is waited for;
- a batch that may be in the log under an old number is never sent under a new one;
- until a pair's first batch in a partition is acknowledged nothing else is sent there: a broker
  that does not know a producer takes any number, and would take the second for the first. Only
  where every transaction has its own epoch brokers insist on 0, and nothing has to wait;
- a gap, left by a batch that was given up, stops new batches until it is closed: by an answer to
  a later one, or by a new pair. With a transaction it is for the transaction to end.
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
    """What a broker says of one batch."""

    code: int
    base_offset: int = NO_OFFSET
    timestamp: int = -1
    log_start_offset: int = NO_OFFSET


class ProduceVerdict(Enum):
    """What becomes of a batch that was answered."""

    DELIVERED = "it is in the log"
    RETRY = "send the same bytes again"
    RESTART = "send it again, with all that follows it, under a new epoch from sequence 0"
    SPLIT = "send it in two halves"
    REFUSED = "it has failed, the producer goes on"
    ABORTABLE = "it has failed, and the transaction with it"
    FATAL = "it has failed, and the producer can do nothing more"
    LATE = "it was given up before the answer came"


class PartitionSequences:
    """The numbers of one partition, and the batches that have one and no outcome."""

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
        """In the order of their numbers; sent, or waiting to be sent again."""
        self.begin(None)

    def begin(self, producer: ProducerIdAndEpoch | None, first: int = 0) -> None:
        """From `first` on under another pair; what is in flight stays so, under its old numbers."""
        self.producer = producer
        self.next_sequence = first
        self.next_ordinal = 0
        self.last_acked_sequence = first - 1 if first else NO_SEQUENCE
        self.last_acked_offset = NO_OFFSET
        self.unresolved = False
        """A batch that had a number was given up, and nothing later has been acknowledged."""
        self.must_restart = False
        self.forgotten = False
        """The broker has refused the very next number: it does not remember what it took."""

    @property
    def has_outstanding(self) -> bool:
        return any(batch.is_outstanding for batch in self.in_flight)

    def is_next(self, batch: ProducerBatch) -> bool:
        """Whether the batch follows what was acknowledged last."""
        return batch.base_sequence == _after(self.last_acked_sequence)

    def number(self, batch: ProducerBatch) -> int:
        """The next numbers are the batch's; the first of them."""
        base = self.next_sequence
        batch.ordinal = self.next_ordinal
        self.next_sequence = next_sequence(base, batch.count)
        self.next_ordinal += 1
        return base

    def acknowledge(self, batch: ProducerBatch, base_offset: int) -> None:
        """Its numbers are used for good."""
        last = last_sequence(batch.base_sequence, batch.count - 1)
        if batch.producer != self.producer or not batch.is_sequenced:
            return
        before = self.last_acked_sequence
        if before == NO_SEQUENCE or 0 < (last - before) % (2 * _HALF) < _HALF:
            self.last_acked_sequence = last
            if base_offset >= 0:
                self.last_acked_offset = base_offset + batch.count - 1

    def settle(self) -> None:
        """To be called when something has left the flight: is the gap closed, or is it for good?"""
        if self.unresolved and not self.in_flight:
            self.unresolved = self.next_sequence != _after(self.last_acked_sequence)
            self.must_restart = self.unresolved


def _after(sequence: int) -> int:
    return 0 if sequence == NO_SEQUENCE else next_sequence(sequence, 1)


class Sequences:
    """The numbers of one producer: who it is now, and what it may do in each partition.

    Without idempotence there are no numbers, and only the limit of batches in flight is kept.
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
        """Brokers take no other number from a pair that they do not know."""
        self._max_in_flight = max_in_flight
        self._partitions: dict[TopicPartition, PartitionSequences] = {}

    def of(self, partition: TopicPartition) -> PartitionSequences:
        """The state of a partition; a new one if there is none."""
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = PartitionSequences()
        return found

    # --- who writes ---------------------------------------------------------------------------

    @property
    def needs_producer_id(self) -> bool:
        """Whether nothing new can be sent before InitProducerId has been answered."""
        return self.idempotent and self.producer is None

    @property
    def writer(self) -> ProducerIdAndEpoch:
        """The pair that goes into batches."""
        return self.producer or NOBODY

    @property
    def has_gap(self) -> bool:
        """Whether a partition cannot go on under this pair: an aborted transaction has to be
        followed by another epoch."""
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
        """The pair that a broker gave. Each partition starts at 0 under a new one, as soon as what
        is in flight there is done; under the same one it goes on.

        `next_sequences` is where another process has left off under this very pair;
        `has_own_epoch` says that it is for one transaction only.
        """
        self.producer = producer
        self._first_is_zero = has_own_epoch
        for partition, first in (next_sequences or {}).items():
            self.of(partition).begin(producer, first)

    def next_sequences(self) -> dict[TopicPartition, int]:
        """Where another process would have to go on under this pair."""
        return {
            partition: state.next_sequence
            for partition, state in self._partitions.items()
            if state.producer == self.producer and state.producer is not None
        }

    # --- sending ------------------------------------------------------------------------------

    def may_send(self, state: PartitionSequences, batch: ProducerBatch) -> bool:
        """Whether the first batch that waits for the partition may go now."""
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
        # Counted from the earliest that has no outcome: acknowledged ones behind it count too, or
        # they would drive it out of what the broker remembers, and its repeat would be refused.
        return (
            state.producer == self.producer
            and (self._first_is_zero or state.last_acked_sequence != NO_SEQUENCE)
            and state.next_ordinal - in_flight[0].ordinal < self._max_in_flight
        )

    def _may_restart(self, state: PartitionSequences) -> bool:
        return (
            not (self.transactional and state.producer == self.producer)
            and self.producer is not None
            and not state.has_outstanding
        )

    def number(self, state: PartitionSequences, batch: ProducerBatch) -> int:
        """The first number of a batch that is sent for the first time; it is in flight now."""
        state.in_flight.append(batch)
        if not self.idempotent:
            return NO_SEQUENCE
        if state.producer != self.producer:
            state.begin(self.producer)
        return state.number(batch)

    def restart(self, state: PartitionSequences) -> bool:
        """Give all that is in flight new numbers, from 0 on, under a newer pair; False if that has
        to be got from a broker first."""
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
        """What an answer means for a batch in flight; what is done about it is up to the caller."""
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
            return ProduceVerdict.RETRY  # a broker that says so before it has looked
        if state.in_flight[0] is not batch:
            return ProduceVerdict.RETRY  # its turn comes when what precedes it is settled
        if not state.unresolved:
            if not state.is_next(batch):
                return ProduceVerdict.RETRY
            state.forgotten = True
        if self.transactional:
            return ProduceVerdict.ABORTABLE
        # Behind a gap the refusal is what had to come, and says that the batch is not in the log.
        # From a broker that has forgotten it says nothing of an attempt that was not answered.
        return (
            ProduceVerdict.REFUSED if batch.in_doubt and state.forgotten else ProduceVerdict.RESTART
        )

    def leave(self, state: PartitionSequences, batch: ProducerBatch, *, delivered: bool) -> None:
        """A batch has an outcome. One that failed under its number leaves a gap."""
        if batch not in state.in_flight:
            return
        state.in_flight.remove(batch)
        if not delivered and batch.is_sequenced and batch.producer == state.producer:
            state.unresolved = True
        state.settle()


def leaves_doubt(answer: BatchResponse) -> bool:
    """Whether the batch may be in the log in spite of the error."""
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
