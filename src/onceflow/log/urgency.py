"""The one place that decides what may be lazy: which entries nobody waits for.

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
    """Says which logs there are and what they are like: durable in every mode."""
    CREATE = "create"
    DELETE = "delete"
    DELETE_RECORDS = "delete records"
    RETENTION = "retention"


LAZY = {
    # Nobody asked and nobody is answered. If the entry is lost, the records are still there (files
    # go only after a checkpoint that holds the new start) and retention finds them again.
    Purpose.RETENTION,
}


def is_urgent(purpose: Purpose) -> bool:
    """Whether someone waits for the entry to be durable."""
    return purpose not in LAZY
