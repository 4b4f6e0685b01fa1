"""A snapshot in the making: some producers at a time, while producers go on writing to the table.

Encoding a whole table of 100,000 producers takes as long as hundreds of requests. So a draft shows
the table as it was when the draft began, and is filled in slices. A producer that changes or is
forgotten before its turn is encoded first, as it was. Each producer notes the number of the newest
draft that has it. With several drafts under way, one encoding serves all the drafts that lack the
producer, because they all began after its last change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from onceflow.errors import InvariantViolated
from onceflow.producers import snapshot
from onceflow.producers.state import ProducerMemory

SLICE = 256
"""Producers that are encoded in one turn: well under a millisecond."""


class SnapshotDraft:
    """Belongs to the table that began it; `take` and `ended` are methods of that table."""

    __slots__ = (
        "_aborted",
        "_chunks",
        "_count",
        "_ended",
        "_fresh",
        "_ids",
        "_offset",
        "_producers",
        "_take",
        "is_finished",
        "number",
    )

    def __init__(
        self,
        offset: int,
        number: int,
        producers: Mapping[int, ProducerMemory],
        aborted: bytes,
        take: Callable[[int, ProducerMemory], None],
        ended: Callable[[SnapshotDraft], None],
    ) -> None:
        self._offset = offset
        self.number = number
        self._producers = producers
        # A copy: producers come and go between the slices, and a dict that changes size while it
        # is iterated raises. Newer ones are not of this draft.
        self._ids = iter(list(producers))
        self._aborted = aborted
        self._take = take
        self._ended = ended
        self._count = 0
        self._chunks: list[bytes] = []
        self._fresh: list[bytes] = []
        self.is_finished = False

    def add(self, encoded: bytes) -> None:
        """Adds one producer, as it was when the draft began."""
        self._fresh.append(encoded)
        self._count += 1

    def advance(self, most: int = SLICE) -> None:
        """Encodes the next `most` producers, unless the draft has them already."""
        if self.is_finished:
            return
        ids = list(islice(self._ids, most))
        for producer_id in ids:
            producer = self._producers.get(producer_id)
            if producer is not None and producer.snapshot < self.number:
                self._take(producer_id, producer)
        self._chunks.append(b"".join(self._fresh))
        self._fresh.clear()
        if len(ids) < most:
            self.is_finished = True
            self._ended(self)

    def finish(self) -> None:
        """Encodes all remaining producers at once."""
        while not self.is_finished:
            self.advance()

    def cancel(self) -> None:
        """Ends the draft without a snapshot."""
        if not self.is_finished:
            self.is_finished = True
            self._ended(self)
            self._chunks.clear()
            self._fresh.clear()

    def to_bytes(self) -> bytes:
        """The snapshot of a finished draft; may run on any thread."""
        if not self.is_finished:
            raise InvariantViolated(
                f"a-snapshot-is-whole: that of offset {self._offset} lacks producers"
            )
        return snapshot.encode(self._offset, self._count, self._chunks, self._aborted)
