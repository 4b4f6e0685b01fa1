"""The one place that decides what may be lazy, and what a nearly full disk must still take.

A lazy entry takes its place in the journal's order at once but does not cause a write: it rides
with the next urgent entry, or with the flush before a checkpoint. So it can be lost in a crash only
together with everything after it. An entry may be lazy only if losing it loses no promise.
"""

from __future__ import annotations

from enum import Enum


class Purpose(Enum):
    """Why an entry is written."""

    APPEND = "append"
    METADATA = "metadata"
    """Describes topics and their settings: durable in every mode."""
    TRANSACTION_GROWS = "transaction grows"
    """Says that a transaction now has more partitions."""
    TRANSACTION_ENDS = "transaction ends"
    """A decision, the markers that carry it out, and that it was carried out."""
    CREATE = "create"
    DELETE = "delete"
    DELETE_RECORDS = "delete records"
    RETENTION = "retention"
    LAYOUT = "layout"
    """Says where a log is cut into files from here on."""


LAZY = {
    # No client asked for it, and none is answered. If the entry is lost, the records are still
    # there (files go only after a checkpoint that holds the new start) and retention finds them
    # again.
    Purpose.RETENTION,
    # Only what comes behind it in the order is cut by it: if it is lost, so is all of that.
    Purpose.LAYOUT,
    # Records and offsets of the transaction come behind it in the order: what is durable of them
    # makes it durable too. If it is lost, so is all that it was needed for.
    Purpose.TRANSACTION_GROWS,
}

FROM_RESERVE = {
    # A few bytes, and deleting a topic makes room.
    Purpose.METADATA,
    # Readers wait for it, and so does an operator who ends open transactions to make room.
    Purpose.TRANSACTION_ENDS,
}


def is_urgent(purpose: Purpose) -> bool:
    """Whether someone waits for the entry to be durable."""
    return purpose not in LAZY


def may_use_reserve(purpose: Purpose) -> bool:
    """Whether the entry is written even when the disk is full but for the reserve."""
    return purpose in FROM_RESERVE
