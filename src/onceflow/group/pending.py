"""Offsets that are part of a transaction nobody has decided yet.

They are kept by producer within a partition of `__consumer_offsets`, because a marker there decides
about all that its producer has written to that partition, and about nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import NamedTuple

from onceflow.group.records import OffsetKey, OffsetValue


class Recorded(NamedTuple):
    """An offset, and where its record stands in the log: of two records the later one counts."""

    value: OffsetValue
    at: int


class PendingOffsets:
    """What open transactions have written."""

    __slots__ = ("_by_producer", "_producers")

    def __init__(self) -> None:
        self._by_producer: dict[tuple[int, int], dict[OffsetKey, Recorded]] = {}
        """By partition and producer id."""
        self._producers: dict[str, dict[OffsetKey, dict[int, None]]] = {}
        """By group and key: the producers that wait to commit it."""

    # --- changes ------------------------------------------------------------------------------

    def add(self, partition: int, producer_id: int, key: OffsetKey, recorded: Recorded) -> None:
        """One more offset in a producer's transaction; the second for a key replaces the first."""
        self._by_producer.setdefault((partition, producer_id), {})[key] = recorded
        self._producers.setdefault(key.group_id, {}).setdefault(key, {})[producer_id] = None

    def clear(self, partition: int, key: OffsetKey) -> None:
        """Nobody's transaction commits this any more."""
        for producer_id in list(self._producers.get(key.group_id, {}).get(key, ())):
            written = self._by_producer[partition, producer_id]
            del written[key]
            if not written:
                del self._by_producer[partition, producer_id]
            self._forget(key, producer_id)

    def take(self, partition: int, producer_id: int) -> Mapping[OffsetKey, Recorded]:
        """Ends a producer's transaction in a partition: what it had written there."""
        written = self._by_producer.pop((partition, producer_id), {})
        for key in written:
            self._forget(key, producer_id)
        return written

    def _forget(self, key: OffsetKey, producer_id: int) -> None:
        keys = self._producers[key.group_id]
        del keys[key][producer_id]
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._producers[key.group_id]

    # --- questions ----------------------------------------------------------------------------

    def __contains__(self, key: OffsetKey) -> bool:
        return key in self._producers.get(key.group_id, {})

    def groups(self) -> Iterator[str]:
        """The groups that open transactions commit to."""
        return iter(self._producers)

    def of_group(self, group_id: str) -> KeysView[OffsetKey]:
        """What open transactions commit to a group."""
        return self._producers.get(group_id, {}).keys()
