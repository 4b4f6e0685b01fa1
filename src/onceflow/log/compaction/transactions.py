"""What compaction has to know of transactions.

A transaction's marker gives its outcome, but may lie behind the compacted part; so compaction asks
the log's companion which transactions were aborted. All others below `Companion.first_unstable`
were committed, and their records are like any others.

A marker is needed while the log has a batch of its transaction, even an empty one: without it, a
consumer that reads the log from its start would take the transaction for an open one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from itertools import takewhile

from onceflow.log.side_files import ABORTED_ENTRY
from onceflow.records import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, StoredBatch

_MARKER = TRANSACTIONAL_BIT | CONTROL_BIT


class BatchKind(Enum):
    """How compaction treats a batch's records."""

    COMMITTED = "committed"
    """Or not of a transaction."""
    ABORTED = "aborted"
    """All of them go, and they displace nothing."""
    MARKER = "marker"
    UNKNOWN = "unknown"
    """They stay as they are."""


class Outcomes:
    """Tells batches apart; without a companion, every transactional batch is of unknown kind."""

    def __init__(self, aborted: Iterable[tuple[int, int, int]] | None) -> None:
        self._has_companion = aborted is not None
        self._aborted: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for producer_id, first, last in sorted(aborted or ()):
            self._aborted[producer_id].append((first, last))

    def kind_of(self, header: BatchHeader) -> BatchKind:
        bits = header.attributes & _MARKER
        if not bits:
            return BatchKind.COMMITTED
        if not self._has_companion or bits == CONTROL_BIT:
            return BatchKind.UNKNOWN
        if bits == _MARKER:
            return BatchKind.MARKER
        return BatchKind.ABORTED if self._is_aborted(header) else BatchKind.COMMITTED

    def _is_aborted(self, header: BatchHeader) -> bool:
        """Transactions of one producer follow one another."""
        spans = self._aborted.get(header.producer_id, [])
        before = bisect_right(spans, header.base_offset, key=lambda span: span[0])
        return before > 0 and header.base_offset <= spans[before - 1][1]

    def decided(self, batches: Sequence[StoredBatch]) -> Sequence[StoredBatch]:
        """The batches before the first that needs a companion where there is none."""
        if self._has_companion:
            return batches
        return list(takewhile(lambda batch: not batch.header.attributes & _MARKER, batches))


class UnendedBatches:
    """Follows the batches from the log's start on: which producers have had a transactional one
    since their last marker."""

    def __init__(self) -> None:
        self._producers: set[int] = set()

    def meets(self, header: BatchHeader, kind: BatchKind) -> bool:
        """Whether this is a marker that ends nothing which is still in the log."""
        if kind is BatchKind.MARKER:
            ends_nothing = header.producer_id not in self._producers
            self._producers.discard(header.producer_id)
            return ends_nothing
        if header.attributes & TRANSACTIONAL_BIT:
            self._producers.add(header.producer_id)
        return False


class LastBatches:
    """Of each producer the last batch with a sequence and the last marker: its place in the
    sequence, and its epoch."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, bool], int] = {}

    def meets(self, header: BatchHeader) -> None:
        producer_id = header.producer_id
        if producer_id >= 0:
            self._offsets[producer_id, header.is_control] = header.base_offset

    def of(self, producers: Collection[int] | None) -> set[int]:
        """Their base offsets, of these producers; None is all."""
        return {
            offset
            for (producer_id, _), offset in self._offsets.items()
            if producers is None or producer_id in producers
        }


def entries_from(index: bytes, offset: int) -> Iterator[bytes]:
    """The entries of an aborted index whose markers are at or behind an offset."""
    whole = len(index) - len(index) % ABORTED_ENTRY.size
    for at in range(0, whole, ABORTED_ENTRY.size):
        entry = index[at : at + ABORTED_ENTRY.size]
        if ABORTED_ENTRY.unpack(entry)[3] >= offset:
            yield entry
