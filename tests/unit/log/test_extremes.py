"""Numbers at the edge of 64 bits, which users may set and send: arithmetic on them saturates, and
what a record says never changes."""

from __future__ import annotations

import pytest

from onceflow.records.validate import validate_records
from tests.unit.log.compaction.keyed_log import (
    batches_of,
    compact,
    config,
    keyed,
    opened,
    records,
    seal_active,
    timestamps,
)
from tests.unit.log.simulated_store import NOW_MS, append

LATEST = 2**63 - 1
EARLIEST = -(2**63)


@pytest.mark.parametrize("timestamp", [NOW_MS, -1, 0, EARLIEST, EARLIEST + 5, LATEST])
@pytest.mark.parametrize("retention", [0, 1, LATEST])
def test_a_tombstone_of_any_time_is_compacted_under_any_retention(
    timestamp: int, retention: int
) -> None:
    _, store, log = opened(config(delete_retention_ms=retention, min_cleanable_dirty_ratio=0))
    append(store, log, keyed([(b"a", b"1")], timestamp=timestamp))
    append(store, log, keyed([(b"a", None)], timestamp=timestamp))
    seal_active(store, log)
    compact(store, NOW_MS)
    assert store.failure is None
    assert records(log)[0] == (1, b"a", None)
    tombstone = batches_of(log)[0]
    assert tombstone.header.base_timestamp == min(NOW_MS + retention, LATEST)
    assert tombstone.header.max_timestamp == timestamp
    validate_records(tombstone)
    assert timestamps(tombstone) == [timestamp], "a reader sees the time that was sent"

    seal_active(store, log)
    compact(store, NOW_MS + 10)
    assert ((1, b"a", None) in records(log)) is (retention == LATEST)
