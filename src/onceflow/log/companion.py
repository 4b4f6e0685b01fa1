"""What somebody else keeps about a log, beside its segments.

The log calls its companion when a segment is sealed, keeps what it is given in files that share the
segments' fate (`side_files.py`), and asks it which transactions compaction must wait for, which
were aborted and which producers may come back. What the bytes say is none of the log's business.
All calls come from the owner's thread, but for one that says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol


class Snapshot(Protocol):
    """A companion's state at one offset. To make it may take long, so it may not be finished when
    it is handed out; it says the same whenever it is."""

    @property
    def is_finished(self) -> bool:
        """Whether there are bytes."""

    def finish(self) -> None:
        """Makes at once what is left to make."""

    def cancel(self) -> None:
        """Says that nobody will ask for the bytes."""

    def to_bytes(self) -> bytes:
        """Once it is finished; from any thread."""


class SideFiles(NamedTuple):
    """What is kept beside a sealed segment."""

    snapshot: Snapshot
    """The companion's state after all batches below the segment's end."""
    aborted_index: bytes
    """The aborted transactions whose markers are in the segment, as in Kafka's `.txnindex`; no file
    when it is empty."""


class Companion(Protocol):
    """Knows the state of producers and transactions as of the log's end, always."""

    def sealed(self, base: int, end: int) -> SideFiles:
        """The segment [base, end) takes no more batches. Called before anything is appended at
        `end`, and of the active segment in an orderly stop."""

    def has_aged(self) -> bool:
        """Whether its state is another than at the last `sealed` even if nothing was appended: some
        of it may change with time alone."""

    def start_moved(self, start: int) -> None:
        """Records below are gone for good."""

    def first_unstable(self) -> int | None:
        """The first offset of all transactions that are open or whose marker is not durable yet:
        what becomes of records from there on is not certain."""

    def aborted(self, start: int, end: int) -> Sequence[tuple[int, int, int]]:
        """All aborted transactions, as producer id, first offset and offset of the marker, that
        have an offset in [start, end)."""

    def remembered(self) -> Collection[int]:
        """The ids of all producers that are remembered, and so may come back: of each the last
        batch and the last marker outlive compaction, as the state after a restart rests on them."""

    def compacted(self, upto: int) -> None:
        """Of transactions whose aborting marker is below `upto` no record is left in the log: they
        are to be forgotten, because their markers may go too. Called in the same turn in which
        readers begin to see the compacted log."""
