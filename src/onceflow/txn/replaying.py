"""What a start believes of a transactional id's records, one after the other.

Whatever the coordinator wrote fulfils this: `state.moved` let nothing else pass. A record that does
not was written by somebody else, or is damaged, and what it says could not be carried on: the next
decision about the id would raise, or a producer would be let in that had been shut out. Compaction
takes records away, the oldest of an id first, so that not every step between states is to be seen.
"""

from __future__ import annotations

from onceflow.errors import InvariantViolated
from onceflow.txn.state import NONE, State, Transaction, check_identity, moved


def check_successor(before: Transaction | None, after: Transaction | None) -> None:
    """Raises `InvariantViolated` where a record cannot follow the one before it; None is an id that
    is not known, and the record that it is forgotten."""
    if after is not None:
        _check_sound(after)
        check_identity(after if before is None else before, after)
    elif before is not None:
        moved(before, State.DEAD)


def _check_sound(transaction: Transaction) -> None:
    """Whether the record by itself says what can be so."""
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
