"""A snapshot in the making: some producers at a time, of a table that is written to meanwhile.

To encode all of a table with 100,000 producers takes as long as hundreds of requests do. So a
draft is of the table as it was when the draft was begun, and is filled in slices; a producer that
is about to change, or to be forgotten, before its turn comes is taken first. Each producer notes
the number of the newest draft that has it: with several drafts under way it is taken for all of
those that lack it at once, as all of them were begun since it last changed.
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
    """Belongs to the table that began it; `take` and `ended` are that table's."""

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
        self._ids = iter(list(producers))
        self._aborted = aborted
        self._take = take
        self._ended = ended
        self._count = 0
        self._chunks: list[bytes] = []
        self._fresh: list[bytes] = []
        self.is_finished = False

    def add(self, encoded: bytes) -> None:
        """One producer, as it was when the draft was begun."""
        self._fresh.append(encoded)
        self._count += 1

    def advance(self, most: int = SLICE) -> None:
        """Looks at so many more of the producers."""
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
        """All that is left, at once."""
        while not self.is_finished:
            self.advance()

    def cancel(self) -> None:
        """Nobody wants it any more."""
        if not self.is_finished:
            self.is_finished = True
            self._ended(self)
            self._chunks.clear()
            self._fresh.clear()

    def to_bytes(self) -> bytes:
        """The snapshot; of a draft that is finished, and then in any thread."""
        if not self.is_finished:
            raise InvariantViolated(
                f"a-snapshot-is-whole: that of offset {self._offset} lacks producers"
            )
        return snapshot.encode(self._offset, self._count, self._chunks, self._aborted)
