"""Bugs to plant in the client, each of which the judge must find within a few seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest

from onceflow.client.codec.transactions import (
    EndTxn,
    TransactionRequest,
    TransactionResponse,
    TxnOffsetCommit,
)
from onceflow.client.consumer.isolation import PartitionFilter
from onceflow.client.errors.requests import BrokerError, ClientError
from onceflow.client.producer import sender
from onceflow.client.producer.accumulator import Accumulator
from onceflow.client.producer.batch import UNKNOWN_OFFSET, Delivered, ProducerBatch
from onceflow.client.producer.idempotence import PartitionSequences, Sequences
from onceflow.client.producer.producer import Producer
from onceflow.client.transactions.machine import TransactionMachine
from onceflow.client.transactions.retrier import Operation, RequestOutcome, RequestRetrier
from onceflow.client.transactions.states import TransactionEvent
from onceflow.records.batch import NO_SEQUENCE, StoredBatch
from onceflow.wire.error_codes import ErrorCode

Plant = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    """What is wrong, what the judge says to it, and in which workload that shows soon."""

    plant: Plant
    verdict: str
    shape: str


# --- idempotence --------------------------------------------------------------------------------


def renumbered_on_retry(patch: pytest.MonkeyPatch) -> None:
    """A batch that is sent again gets a new sequence."""
    honest = Accumulator.requeue

    def requeue(
        accumulator: Accumulator, batch: ProducerBatch, retry_at: float, *, in_doubt: bool
    ) -> None:
        honest(accumulator, batch, retry_at, in_doubt=in_doubt)
        if not batch.is_done and batch.is_sequenced:
            state = accumulator._queues[batch.partition].state
            batch.renumber(batch.producer, state.number(batch))

    patch.setattr(Accumulator, "requeue", requeue)


def retried_behind_the_others(patch: pytest.MonkeyPatch) -> None:
    """A batch that is sent again goes to the end of the queue, and its number to the next one."""
    honest = Accumulator.requeue

    def requeue(
        accumulator: Accumulator, batch: ProducerBatch, retry_at: float, *, in_doubt: bool
    ) -> None:
        queue = accumulator._queues[batch.partition]
        state = queue.state
        if batch.is_done or state.in_flight != [batch]:
            honest(accumulator, batch, retry_at, in_doubt=in_doubt)
            return
        state.in_flight.clear()
        state.next_sequence = batch.base_sequence
        state.next_ordinal -= 1
        batch.base_sequence = NO_SEQUENCE
        batch.is_outstanding = False
        batch.in_doubt = True
        batch.retry_at = retry_at
        queue.waiting.append(batch)
        accumulator._waiting[batch.partition] = queue

    patch.setattr(Accumulator, "requeue", requeue)


def gap_filled_by_the_next(patch: pytest.MonkeyPatch) -> None:
    """While nobody knows of a batch that was given up, the next one is sent under its number."""

    def leave(
        sequences: Sequences, state: PartitionSequences, batch: ProducerBatch, *, delivered: bool
    ) -> None:
        if batch in state.in_flight:
            state.in_flight.remove(batch)
            if not delivered and not state.in_flight:
                state.next_sequence = batch.base_sequence

    patch.setattr(Sequences, "leave", leave)


def epoch_not_bumped(patch: pytest.MonkeyPatch) -> None:
    """After a gap a partition begins at 0 again, under the epoch it had."""

    def restart(sequences: Sequences, state: PartitionSequences) -> bool:
        if sequences.producer is None:
            return False
        state.begin(sequences.producer)
        for batch in state.in_flight:
            batch.renumber(sequences.producer, state.number(batch))
        return True

    patch.setattr(Sequences, "restart", restart)


def lost_taken_for_delivered(patch: pytest.MonkeyPatch) -> None:
    """A batch whose answer is lost counts as acknowledged."""
    honest = Accumulator.requeue

    def requeue(
        accumulator: Accumulator, batch: ProducerBatch, retry_at: float, *, in_doubt: bool
    ) -> None:
        if in_doubt and not batch.is_done:
            batch.is_outstanding = False
            accumulator._finish(batch, Delivered(UNKNOWN_OFFSET, -1))
        else:
            honest(accumulator, batch, retry_at, in_doubt=in_doubt)

    patch.setattr(Accumulator, "requeue", requeue)


def doubt_denied(patch: pytest.MonkeyPatch) -> None:
    """What may be in the log is said not to be."""
    patch.setattr(sender, "outcome_of", lambda batch: "not applied")


# --- transactions -------------------------------------------------------------------------------


def _answered(
    patch: pytest.MonkeyPatch,
    change: Callable[[TransactionRequest, RequestOutcome], RequestOutcome],
    *,
    patient: bool = True,
) -> None:
    """Changes how asking a coordinator ended; one that is not `patient` asks once only."""
    honest = RequestRetrier.ask

    def ask(asker: RequestRetrier, request: TransactionRequest) -> Operation[RequestOutcome]:
        asking = honest(asker, request)
        reply: Any = None
        while True:
            try:
                step = asking.send(reply)
            except StopIteration as end:
                return change(request, end.value)
            reply = yield step
            if not patient and isinstance(reply, ClientError) and reply.outcome == "unknown":
                found = change(request, RequestOutcome(TransactionResponse(), reply, False, True))
                if not found.is_doubtful:
                    return found

    patch.setattr(RequestRetrier, "ask", ask)


def aborted_after_an_unclear_commit(patch: pytest.MonkeyPatch) -> None:
    """A commit whose answer is lost is taken for one that was not done."""

    def change(request: TransactionRequest, asked: RequestOutcome) -> RequestOutcome:
        is_commit = isinstance(request, EndTxn) and request.committed
        return asked._replace(is_doubtful=False) if is_commit and asked.is_doubtful else asked

    _answered(patch, change, patient=False)


def unclear_taken_for_committed(patch: pytest.MonkeyPatch) -> None:
    """A commit whose answer is lost is taken for done."""

    def change(request: TransactionRequest, asked: RequestOutcome) -> RequestOutcome:
        is_commit = isinstance(request, EndTxn) and request.committed
        return (
            RequestOutcome(TransactionResponse(), None, False, False)
            if is_commit and asked.is_doubtful
            else asked
        )

    _answered(patch, change, patient=False)


def fence_taken_for_committed(patch: pytest.MonkeyPatch) -> None:
    """A commit that is refused because of the epoch is taken for one that was done before."""

    def change(request: TransactionRequest, asked: RequestOutcome) -> RequestOutcome:
        is_refused = isinstance(asked.error, BrokerError) and asked.error.code in (
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_PRODUCER_EPOCH,
        )
        if isinstance(request, EndTxn) and request.committed and is_refused:
            return RequestOutcome(TransactionResponse(), None, False, False)
        return asked

    _answered(patch, change)


def lost_offsets_taken_for_committed(patch: pytest.MonkeyPatch) -> None:
    """Offsets whose answer is lost are taken for committed."""

    def change(request: TransactionRequest, asked: RequestOutcome) -> RequestOutcome:
        if isinstance(request, TxnOffsetCommit) and asked.is_doubtful:
            return RequestOutcome(TransactionResponse(), None, False, False)
        return asked

    _answered(patch, change, patient=False)


def committed_before_all_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """A commit does not wait for what is under way."""

    async def flush(producer: Producer) -> None:
        """Nothing."""

    patch.setattr(Producer, "flush", flush)


def epoch_used_again_after_doubt(patch: pytest.MonkeyPatch) -> None:
    """In the older protocol transactions share an epoch, whatever became of their ends' copies."""
    honest = TransactionMachine._ended

    def ended(
        machine: TransactionMachine,
        answer: TransactionResponse,
        event: TransactionEvent,
        *,
        renew: bool,
    ) -> Operation[None]:
        yield from honest(machine, answer, event, renew=False)

    patch.setattr(TransactionMachine, "_ended", ended)


# --- reading ------------------------------------------------------------------------------------


def aborted_list_ignored(patch: pytest.MonkeyPatch) -> None:
    """Readers of what is committed see what was aborted."""
    honest = PartitionFilter.begin

    def begin(reader: PartitionFilter, aborted: Iterable[tuple[int, int]]) -> None:
        honest(reader, ())

    patch.setattr(PartitionFilter, "begin", begin)


def fetch_skipped_for_an_aborted_batch(patch: pytest.MonkeyPatch) -> None:
    """An answer that begins with an aborted batch is passed over as a whole."""
    honest = PartitionFilter.visible

    def visible(reader: PartitionFilter, batches: Iterable[StoredBatch]) -> Iterator[StoredBatch]:
        sent = list(batches)
        shown = list(honest(reader, sent))
        is_hidden = bool(sent) and sent[0].header.is_transactional and sent[0] not in shown
        return iter([] if is_hidden and not sent[0].header.is_control else shown)

    patch.setattr(PartitionFilter, "visible", visible)


_WRONG_RECORD = "times|is not there|before what was sent first|was not acknowledged"
_WRONG_TRANSACTION = "visible"

BUGS = {
    each.plant.__name__: each
    for each in (
        Bug(renumbered_on_retry, r"is there \d+ times", "plain"),
        Bug(retried_behind_the_others, _WRONG_RECORD, "plain"),
        Bug(gap_filled_by_the_next, _WRONG_RECORD, "expiring"),
        Bug(epoch_not_bumped, _WRONG_RECORD, "expiring"),
        Bug(lost_taken_for_delivered, "is not there", "plain"),
        Bug(doubt_denied, "was said not to be there", "expiring"),
        Bug(aborted_after_an_unclear_commit, _WRONG_TRANSACTION, "struck"),
        Bug(unclear_taken_for_committed, f"{_WRONG_TRANSACTION}|group of", "struck"),
        Bug(fence_taken_for_committed, "is not visible", "all"),
        Bug(lost_offsets_taken_for_committed, "group of", "struck"),
        Bug(committed_before_all_is_acknowledged, _WRONG_TRANSACTION, "struck"),
        Bug(
            epoch_used_again_after_doubt,
            _WRONG_TRANSACTION + "|before it was committed|group of",
            "older ends",
        ),
        Bug(aborted_list_ignored, "reader got", "all"),
        Bug(fetch_skipped_for_an_aborted_batch, "reader got", "all"),
    )
}
