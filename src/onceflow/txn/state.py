"""A transactional id as the coordinator knows it, and the one way from state to state.

A `TransactionMetadata` never changes; `moved` makes its successor. It refuses every step that the
table does not list, an epoch of the same producer id that goes back, and an invalid identity, and
names the rule. Nothing else changes a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from onceflow.errors import InvariantViolated
from onceflow.types import TopicPartition
from onceflow.wire import LAST_EPOCH, ProducerIdAndEpoch

NONE: Final = -1
"""No producer id, no epoch, no time."""
NEVER_MS: Final = 2**31 - 1
"""The timeout with which Kafka marks a transaction of a two-phase commit."""


class TransactionState(Enum):
    """Where a transactional id stands; the values are the numbers that Kafka stores."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name that Kafka's tools print and filter by."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_IDLE = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
_OPEN = frozenset({TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE})

LEGAL: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        TransactionState.EMPTY: _IDLE,
        TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
        TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
        TransactionState.PREPARE_ABORT: _IDLE
        | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
        TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
        TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
        TransactionState.DEAD: _IDLE,
        TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
    }
)
"""Which states each state may be reached from."""


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """A transactional id and its last or open transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    previous_producer_id: int = NONE
    """The producer id that asked for the last change, if that change replaced it."""
    next_producer_id: int = NONE
    """The client's producer id after this transaction, once it is decided; while a prepared
    transaction is kept, that of the client that may end it."""
    next_producer_epoch: int = NONE
    """Goes with `next_producer_id`; a new producer id starts at 0."""
    last_epoch: int = NONE
    """The epoch that asked for the last change, if that request may be repeated."""
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NONE
    client_version: int = 0
    """The transaction version that the client uses: 2 means one epoch per transaction."""

    @property
    def is_idle(self) -> bool:
        """No transaction is open or being ended."""
        return self.state in _IDLE

    @property
    def is_two_phase(self) -> bool:
        """An outside coordinator decides it: no timeout ends it."""
        return self.timeout_ms == NEVER_MS

    @property
    def is_kept(self) -> bool:
        """It is open, and its client has come back only to end it."""
        return self.state in _OPEN and self.next_producer_id != NONE

    @property
    def client(self) -> ProducerIdAndEpoch:
        """The identity that the coordinator accepts, now or once its decision is carried out."""
        if self.next_producer_id == NONE:
            return ProducerIdAndEpoch(self.producer_id, self.epoch)
        return ProducerIdAndEpoch(self.next_producer_id, max(self.next_producer_epoch, 0))

    @property
    def previous(self) -> ProducerIdAndEpoch | None:
        """The identity of a client that did not receive the answer to the last change."""
        if self.last_epoch == NONE:
            return None
        known = self.previous_producer_id
        return ProducerIdAndEpoch(self.producer_id if known == NONE else known, self.last_epoch)


def moved(
    transaction: TransactionMetadata, to: TransactionState, **changes: Any
) -> TransactionMetadata:
    """The transaction in another state, with other fields changed. A producer id that this change
    replaces is remembered until the next change."""
    if transaction.state not in LEGAL[to]:
        raise InvariantViolated(
            f"transactional id {transaction.transactional_id!r}: there is no way from "
            f"{transaction.state.title} to {to.title}"
        )
    gone = changes.get("producer_id", transaction.producer_id) != transaction.producer_id
    changes.setdefault("previous_producer_id", transaction.producer_id if gone else NONE)
    successor = replace(transaction, state=to, **changes)
    check_identity(transaction, successor)
    return successor


def check_identity(before: TransactionMetadata, after: TransactionMetadata) -> None:
    """Raises `InvariantViolated` if a producer id's epoch goes back, or the identity is invalid."""
    # An epoch that goes back would let in a producer that an earlier answer has fenced.
    went_back = after.producer_id == before.producer_id and after.epoch < before.epoch
    if went_back or after.producer_id < 0 or not 0 <= after.epoch <= LAST_EPOCH:
        raise InvariantViolated(
            f"transactional id {before.transactional_id!r}: producer {before.producer_id} at epoch "
            f"{before.epoch} cannot become {after.producer_id} at epoch {after.epoch}"
        )


def check_successor(before: TransactionMetadata | None, after: TransactionMetadata | None) -> None:
    """Raises `InvariantViolated` if a record that a start reads cannot follow the one before it.
    None stands for an unknown id before, and for a tombstone after.

    Every record of the coordinator passes, because `moved` let nothing else through. A record that
    fails is damaged or not the coordinator's own. Applied all the same, it would make the next
    decision about the id raise, or let in a fenced producer. Compaction removes the older records
    of an id, so a start does not see every step.
    """
    if after is not None:
        _check_sound(after)
        check_identity(after if before is None else before, after)
    elif before is not None:
        moved(before, TransactionState.DEAD)


def _check_sound(transaction: TransactionMetadata) -> None:
    """Raises `InvariantViolated` if the record contradicts itself."""
    client = transaction.client
    if client.producer_id < 0 or (
        client.producer_id == transaction.producer_id and client.epoch < transaction.epoch
    ):
        raise InvariantViolated(
            f"transactional id {transaction.transactional_id!r}: a transaction of producer "
            f"{transaction.producer_id} at epoch {transaction.epoch} cannot be that of a client "
            f"with producer id {client.producer_id} and epoch {client.epoch}"
        )
    if transaction.is_idle and (transaction.partitions or transaction.next_producer_id != NONE):
        raise InvariantViolated(
            f"transactional id {transaction.transactional_id!r}: nothing is open in state "
            f"{transaction.state.title}, but {len(transaction.partitions)} partitions and producer "
            f"id {transaction.next_producer_id} for the end are named"
        )
