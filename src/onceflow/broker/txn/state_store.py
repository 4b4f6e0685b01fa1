"""All transactional ids, their way into the log, and the ending of their transactions.

A decision is written to `__transaction_state` and applied in the same step. Ending a transaction is
one step of the loop too: PREPARE, a marker for each partition, COMPLETE, in this order in the
journal. So a crash leaves a prefix of that, which `load` carries to the same end. If the disk has
no room for a marker, the store tries again until it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from onceflow.broker.requests import CallLater
from onceflow.broker.topics import Topics, Unapplied
from onceflow.broker.txn.markers import Markers
from onceflow.broker.txn.producer_ids import ProducerIds
from onceflow.broker.txn.topic import TransactionsTopic
from onceflow.errors import OnceflowError
from onceflow.log import Purpose, Quarantine, Ticket
from onceflow.runtime import SteadyClock, TimerHandle
from onceflow.txn import (
    COMPLETED,
    Deadlines,
    Finish,
    TransactionMetadata,
    TransactionState,
    machine,
    moved,
    remaining_ms,
)
from onceflow.types import TopicPartition
from onceflow.wire import TRANSACTION_V2

_TICK_SECONDS = 0.2
_UNEXPECTED_SECONDS = 60.0
"""Between two attempts after an error that waiting will hardly mend."""
_SLICE = 64
"""Ids checked in one turn of the loop: a tombstone for each takes some milliseconds."""

_log = logging.getLogger(__name__)


class TransactionDependencies(NamedTuple):
    """What the coordinator needs from elsewhere."""

    clock: SteadyClock
    call_later: CallLater
    topics: Topics
    topic: TransactionsTopic
    ensure_offsets_partition: Callable[[str], TopicPartition]
    """The partition that keeps a group, whose topic is made if it is not there."""
    markers: Markers
    ids: ProducerIds
    quarantine: Quarantine


class TransactionStateStore:
    """Belongs to the broker's loop."""

    def __init__(self, dependencies: TransactionDependencies) -> None:
        self._dependencies = dependencies
        self._clock = dependencies.clock
        self._known: dict[str, TransactionMetadata] = {}
        self._tickets: dict[str, Ticket] = {}
        self._open: set[str] = set()
        self._unfinished: dict[str, Finish] = {}
        self._closed_to_more: set[int] = set()
        self._deadlines = Deadlines()
        self._timer: TimerHandle | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._known)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def is_closed_to_writes(self, producer_id: int) -> bool:
        """Whether a transaction may still be open in partitions but must not grow: it is prepared
        and kept for a new client, or it is decided and lacks markers."""
        return producer_id in self._closed_to_more

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        return self._known.get(transactional_id)

    def all(self) -> Iterator[TransactionMetadata]:
        """Every transactional id, read-only."""
        return iter(self._known.values())

    def tickets(self, transactional_id: str) -> list[Ticket]:
        """What has to be durable before an answer may say anything about an id."""
        last = self._tickets.get(transactional_id)
        return [last] if last is not None and not last.done else []

    # --- start and end ------------------------------------------------------------------------

    def load(self, unapplied: Unapplied) -> None:
        """Restores all ids from the log, and finishes the transactions that were ending."""
        for transaction in self._dependencies.topic.replay(unapplied).values():
            self._apply(transaction)
            finish = machine.resume(transaction, self._clock.wall_ms())
            if finish is not None:
                self._unfinished[transaction.transactional_id] = finish
        self._finish_rest()

    def close(self) -> None:
        """Stops all timeouts."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    # --- changes ------------------------------------------------------------------------------

    def write(self, transaction: TransactionMetadata, purpose: Purpose) -> None:
        """Writes and applies a decision. Raises what `LogStore.append` does, nothing changed."""
        # Append, then apply, with no turn of the loop in between: a refused append leaves no trace,
        # and the next request is judged by this decision though it is not durable yet.
        ticket = self._dependencies.topic.append(transaction.transactional_id, transaction, purpose)
        if purpose is not Purpose.TRANSACTION_GROWS:  # which no client awaits
            self._tickets[transaction.transactional_id] = ticket
        self._apply(transaction)

    def _apply(self, transaction: TransactionMetadata) -> None:
        """Applies a record, live or at a start."""
        transactional_id = transaction.transactional_id
        self._known[transactional_id] = transaction
        if transaction.is_kept or transaction.state in COMPLETED:
            self._closed_to_more.add(transaction.producer_id)
        if transaction.state is not TransactionState.ONGOING:
            self._open.discard(transactional_id)
            self._deadlines.ended(transactional_id)
        elif transactional_id not in self._open:
            self._open.add(transactional_id)
            if not transaction.is_two_phase:
                left_ms = remaining_ms(transaction, self._clock.wall_ms())
                deadline = self._clock.monotonic() + left_ms / 1000
                self._deadlines.started(transactional_id, transaction.epoch, deadline)
                self._tick_soon()

    def finish(self, finish: Finish) -> None:
        """Ends a transaction. Raises what `LogStore.append` does only while nothing is decided."""
        self.write(finish.prepare, Purpose.TRANSACTION_ENDS)
        # Decided. From here on nothing may raise: the client would take it for undecided and ask
        # for the opposite. What fails below stays in `_unfinished`, and `_tick` tries it again.
        self._unfinished[finish.prepare.transactional_id] = finish
        self._carry_out(finish, finish.partitions)

    def _carry_out(self, finish: Finish, places: Sequence[TopicPartition]) -> None:
        """Writes the markers, then COMPLETE."""
        prepare = finish.prepare
        transactional_id = prepare.transactional_id
        try:
            epoch = self._dependencies.topic.ensure_partition(transactional_id).leader_epoch
            for place in places:
                self._dependencies.markers.write(
                    place,
                    prepare.producer_id,
                    prepare.epoch,
                    commit=finish.commit,
                    coordinator_epoch=epoch,
                )
            # Behind every marker: to a start, COMPLETE says that nothing is left to do. A partition
            # whose marker is missing then would hold back read_committed readers for ever.
            self.write(finish.complete, Purpose.TRANSACTION_ENDS)
            del self._unfinished[transactional_id]
            self._closed_to_more.discard(prepare.producer_id)
        except OnceflowError as error:
            _log.warning(
                "the transaction of %r is decided but not all of its markers could be written, "
                "which is tried again: %s",
                transactional_id,
                error,
            )
            self._tick_soon()

    def lacking_markers(self, transaction: TransactionMetadata) -> list[TopicPartition]:
        """The partitions in which a transaction is still open. Partitions that were added but never
        written need no marker."""
        return [
            place
            for place in sorted(transaction.partitions)
            if _is_of(transaction, self._open_epoch(place, transaction.producer_id))
        ]

    def _open_epoch(self, place: TopicPartition, producer_id: int) -> int | None:
        """The epoch of the transaction that a producer has open in a partition, if it has one."""
        partition = self._dependencies.topics.partition(*place)
        producer = None if partition is None else partition.producers.find(producer_id)
        if producer is None or producer.transaction_start is None:
            return None
        return producer.epoch

    def _finish_rest(self) -> None:
        for transactional_id, finish in list(self._unfinished.items()):
            self._dependencies.quarantine.attempt(
                "end of a transaction", transactional_id, partial(self._finish_one, finish)
            )

    def _finish_one(self, finish: Finish) -> None:
        self._carry_out(finish, self.lacking_markers(finish.prepare))

    # --- time ---------------------------------------------------------------------------------

    def _tick_soon(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = self._dependencies.call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self._finish_rest()
            for transactional_id in self._deadlines.due(self._clock.monotonic()):
                self._time_out(self._known[transactional_id])
        finally:  # whatever happens, other transactions that are due must not wait for ever
            if self._unfinished or self._deadlines.next_deadline() is not None:
                self._tick_soon()

    def _time_out(self, transaction: TransactionMetadata) -> None:
        transactional_id = transaction.transactional_id
        try:
            finish = machine.time_out(
                transaction,
                self._clock.wall_ms(),
                new_producer_id=self._dependencies.ids.take,
            )
            if finish is None:
                return
            self.finish(finish)
        except Exception as error:  # others are due too, and must not wait for this one
            self._time_out_again(transaction, error)
            return
        _log.info(
            "aborted the transaction of %r: it was open for longer than its %d ms",
            transactional_id,
            transaction.timeout_ms,
        )

    def _time_out_again(self, transaction: TransactionMetadata, error: Exception) -> None:
        transactional_id = transaction.transactional_id
        is_expected = isinstance(error, OnceflowError)
        if is_expected:
            _log.warning("%r could not be aborted yet: %s", transactional_id, error)
        else:
            job = "timeout of a transaction"
            self._dependencies.quarantine.report(job, transactional_id, "", error)
        seconds = _TICK_SECONDS if is_expected else _UNEXPECTED_SECONDS
        again = self._clock.monotonic() + seconds
        self._deadlines.started(transactional_id, transaction.epoch, again)

    def expire(self, expiration_ms: int) -> Iterator[None]:
        """Forgets ids that were not used for `expiration_ms`; to be run in slices."""
        ids = iter(list(self._known))
        while some := list(islice(ids, _SLICE)):
            for transactional_id in some:
                # Looked up anew: between two slices a request may have used the id.
                transaction = self._known.get(transactional_id)
                if transaction is not None and self._is_expired(transaction, expiration_ms):
                    self._dependencies.quarantine.attempt(
                        "expiry of a transactional id",
                        transactional_id,
                        partial(self._forget, transaction),
                    )
            yield

    def _is_expired(self, transaction: TransactionMetadata, expiration_ms: int) -> bool:
        age_ms = self._clock.age_ms(transaction.updated_ms)
        return machine.is_expired(transaction, age_ms, expiration_ms)

    def _forget(self, transaction: TransactionMetadata) -> None:
        transactional_id = transaction.transactional_id
        # Raises unless the id is idle: the transaction of a forgotten one would never end.
        moved(transaction, TransactionState.DEAD)
        self._dependencies.topic.append(transactional_id, None, Purpose.APPEND)
        del self._known[transactional_id]
        self._tickets.pop(transactional_id, None)


def _is_of(transaction: TransactionMetadata, open_epoch: int | None) -> bool:
    """Whether the open transaction in a partition is this one, and not a later one, whose record
    was lost with the end of a log. Where each has its own epoch, the decision has a higher one."""
    if open_epoch is None:
        return False
    decided = transaction.state in COMPLETED and transaction.client_version >= TRANSACTION_V2
    return open_epoch < transaction.epoch if decided else open_epoch <= transaction.epoch
