"""Sequence numbers of idempotent producers: 0 .. 2^31 - 1, then 0 again.

The two functions here are the only places that know where the numbers wrap.
"""

from __future__ import annotations

NO_SEQUENCE = -1
"""What a batch without an idempotent producer carries in place of its first sequence."""

_MODULUS = 2**31


def next_sequence(sequence: int, record_count: int) -> int:
    """The sequence `record_count` records after `sequence`."""
    return (sequence + record_count) % _MODULUS


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence of a batch's last record; `NO_SEQUENCE` stays what it is."""
    if base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (base_sequence + last_offset_delta) % _MODULUS
