"""Kinds and versions of the broker's own records: what a number that is not known here means."""

from __future__ import annotations

from typing import Final

from onceflow.errors import NewerRecord, RecordError, RecordMalformed

_LARGEST: Final = 255
"""Kafka counts kinds and versions up from 0, one by one: a number above this was never one, and the
bytes that it was read from are no record."""


def unknown_number(what: str, number: int, newest: int) -> RecordError:
    """What to raise for a kind or a version that is not among those up to `newest`."""
    told = f"{what} {number} is not known, only those from 0 to {newest} are"
    return NewerRecord(told) if newest < number <= _LARGEST else RecordMalformed(told)
