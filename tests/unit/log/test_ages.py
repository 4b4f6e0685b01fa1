"""What is old, and who says so: records without a timestamp, clocks that were ahead, logs that
nobody writes to any more."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.errors import DiskFull
from onceflow.log.checkpoint import PATH, Durability
from onceflow.log.config import LogConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.testing.disk import Link, Op, Rename, SimDisk, SyncDir
from tests.unit.log.compaction.keyed_log import DAY_MS, config, keyed, opened, records
from tests.unit.log.simulated_store import (
    NOW_MS,
    append,
    full_for_checkpoints,
    log_id,
    new_batch,
    open_store,
    store_with_log,
)

LOOK_MS = 15_000
UNDATED = -1


def retaining(durability: Durability = Durability.FSYNC, **settings: Any) -> StoreConfig:
    values = {"segment_bytes": 1000, "retention_ms": 7 * DAY_MS, **settings}
    return StoreConfig(durability=durability, log=LogConfig(**values), reserve_bytes=0)


# --- retention -----------------------------------------------------------------------------------


def test_records_without_a_timestamp_are_as_old_as_their_segment_is_unchanged() -> None:
    _, store, log = store_with_log(retaining(segment_bytes=2000))
    for _ in range(13):
        append(store, log, new_batch(timestamp=UNDATED))
    sealed_end = log.active.base_offset
    for day in range(7):
        store.enforce_retention(NOW_MS + day * DAY_MS)
        assert log.start_offset == 0
        append(store, log, new_batch(timestamp=UNDATED, size=1))
    store.enforce_retention(NOW_MS + 7 * DAY_MS + 1)
    assert log.start_offset == sealed_end, "what is written to is young"
    for day in (7, 13, 14):
        store.enforce_retention(NOW_MS + day * DAY_MS + 1)
        assert log.start_offset == sealed_end
    store.enforce_retention(NOW_MS + 14 * DAY_MS + 2)
    assert log.start_offset == log.end_offset == 20


def test_a_segment_with_one_timestamp_goes_by_that() -> None:
    _, store, log = store_with_log(retaining())
    append(store, log, new_batch(timestamp=UNDATED))
    append(store, log, new_batch(timestamp=NOW_MS))
    append(store, log, new_batch(timestamp=-(2**63)))
    assert len(log.segments) == 1
    store.enforce_retention(NOW_MS + 7 * DAY_MS)
    assert log.start_offset == 0
    store.enforce_retention(NOW_MS + 7 * DAY_MS + 1)
    assert log.start_offset == 3


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("durability", Durability)
def test_restarts_do_not_make_records_young_again(durability: Durability, stop: bool) -> None:
    """Not even one a day, by a kill, on a broker that does nothing else."""
    settings = retaining(durability)
    disk, store, log = store_with_log(settings)
    for _ in range(10):
        append(store, log, new_batch(timestamp=UNDATED))
    day = 0
    while log.start_offset == 0:
        assert day <= 8
        if stop:
            store.close()
        disk = SimDisk(disk.tree)
        store = open_store(disk, settings)
        log = store.logs[log_id(1)]
        store.enforce_retention(NOW_MS + day * DAY_MS + day)
        day += 1
    assert day == 8
    assert log.start_offset == 10


def test_appends_behind_the_last_look_make_the_segment_young_again_after_a_restart() -> None:
    disk, store, log = store_with_log(retaining())
    append(store, log, new_batch(timestamp=UNDATED))
    store.enforce_retention(NOW_MS)
    append(store, log, new_batch(timestamp=UNDATED))
    crashed = SimDisk(disk.tree)
    store.close()
    for image in (crashed, disk):
        again = open_store(image, retaining())
        found = again.logs[log_id(1)]
        again.enforce_retention(NOW_MS + 7 * DAY_MS + 1)
        assert found.start_offset == 0
        again.enforce_retention(NOW_MS + 14 * DAY_MS + 2)
        assert found.start_offset == 2


def test_a_clock_that_was_ahead_makes_nothing_go_early() -> None:
    _, store, log = store_with_log(retaining())
    append(store, log, new_batch(timestamp=UNDATED))
    store.enforce_retention(NOW_MS + 30 * DAY_MS)  # the clock is set back after this
    store.enforce_retention(NOW_MS)
    store.enforce_retention(NOW_MS + 37 * DAY_MS)
    assert log.start_offset == 0
    store.enforce_retention(NOW_MS + 37 * DAY_MS + 1)
    assert log.start_offset == 1


def test_an_idle_broker_takes_no_checkpoint_for_what_it_knows() -> None:
    disk, store, log = store_with_log(retaining())
    append(store, log, new_batch(timestamp=UNDATED))
    store.enforce_retention(NOW_MS)
    ops = len(disk.ops)
    for look in range(100):
        store.enforce_retention(NOW_MS + look)
        store.compact(NOW_MS + look)
    assert len(disk.ops) == ops


def test_compaction_does_not_make_records_young_again() -> None:
    settings = config(delete=True, retention_ms=7 * DAY_MS, segment_bytes=1000)
    _, store, log = opened(settings)
    for number in range(40):
        append(store, log, keyed([(b"k", b"%d" % number)], timestamp=UNDATED))
    append(store, log, keyed([(b"end", b"x" * 2000)], timestamp=NOW_MS + DAY_MS))
    store.enforce_retention(NOW_MS)
    store.compact(NOW_MS + 6 * DAY_MS)
    assert [record[0] for record in records(log)] == [39, 40]
    store.enforce_retention(NOW_MS + 7 * DAY_MS + 1)
    assert log.start_offset == 40


# --- rolls ---------------------------------------------------------------------------------------


def test_a_first_batch_without_a_timestamp_does_not_close_its_segment() -> None:
    disk, store, log = store_with_log(retaining(segment_ms=DAY_MS, segment_bytes=10_000))
    for number in range(6):
        timestamp = UNDATED if number % 2 == 0 else NOW_MS + number
        append(store, log, new_batch(timestamp=timestamp))
    assert len(log.segments) == 1
    settings = retaining(segment_ms=DAY_MS, segment_bytes=10_000)
    replayed = open_store(SimDisk(disk.tree), settings).logs[log_id(1)]
    assert len(replayed.segments) == 1


def test_a_segment_whose_first_batch_has_no_timestamp_ages_by_the_clock() -> None:
    disk, store, log = store_with_log(retaining(segment_ms=DAY_MS))
    append(store, log, new_batch(timestamp=UNDATED))
    store.compact(NOW_MS)
    append(store, log, new_batch(timestamp=NOW_MS))
    store.compact(NOW_MS + DAY_MS)
    assert len(log.segments) == 1
    store.compact(NOW_MS + DAY_MS + 1)
    assert [each.size for each in log.segments] == [2 * 161, 0]
    store.compact(NOW_MS + 10 * DAY_MS)
    assert len(log.segments) == 2, "an empty one is never closed"
    assert len(open_store(SimDisk(disk.tree)).logs[log_id(1)].segments) >= 1


@pytest.mark.parametrize("timestamp", [UNDATED, NOW_MS])
def test_no_room_for_a_new_segment_puts_the_roll_off(timestamp: int) -> None:
    settings = config(max_compaction_lag_ms=DAY_MS, segment_bytes=1000)
    disk, store, log = opened(settings)
    append(store, log, keyed([(b"k", b"v")], timestamp=timestamp))
    store.compact(NOW_MS)

    def full(op: Op) -> bool:
        if isinstance(op, Link):
            raise DiskFull("simulated")
        return False

    disk.fail = full
    store.compact(NOW_MS + 2 * DAY_MS)
    assert len(log.segments) == 1
    disk.fail = lambda _: False
    store.compact(NOW_MS + 2 * DAY_MS)
    assert len(log.segments) == 2
    assert not store.quarantine.failures


# --- compaction ----------------------------------------------------------------------------------


def filled(store: LogStore, log: PartitionLog, *, timestamp: int = NOW_MS) -> None:
    for number in range(6):
        append(store, log, keyed([(b"k", b"%d" % number)], timestamp=timestamp))


def offsets(log: PartitionLog) -> list[int]:
    return [record[0] for record in records(log)]


def test_records_from_the_future_are_compacted_where_no_lag_is_set() -> None:
    """As after a month with a clock that was ahead."""
    _, store, log = opened()
    filled(store, log, timestamp=NOW_MS + 30 * DAY_MS)
    store.request_checkpoint()
    store.compact(NOW_MS)
    assert offsets(log) == [4, 5]


def test_a_lag_goes_by_the_timestamp_or_where_there_is_none_by_the_last_change() -> None:
    for timestamp in (NOW_MS, UNDATED):
        _, store, log = opened(config(min_compaction_lag_ms=DAY_MS))
        filled(store, log, timestamp=timestamp)
        store.request_checkpoint()
        store.compact(NOW_MS)
        store.compact(NOW_MS + DAY_MS - 1)
        assert len(records(log)) == 6
        store.compact(NOW_MS + DAY_MS)
        assert offsets(log) == [4, 5]


def test_a_log_that_waits_only_for_a_checkpoint_gets_one() -> None:
    disk, store, log = opened()
    filled(store, log)
    store.compact(NOW_MS)
    assert len(records(log)) == 6, "nothing that no checkpoint names is touched"
    store.compact(NOW_MS)
    assert offsets(log) == [4, 5]
    ops = len(disk.ops)
    for look in range(100):
        store.compact(NOW_MS + look * LOOK_MS)
    assert len(disk.ops) == ops, "and then nothing happens any more"


def test_what_a_checkpoint_would_not_help_asks_for_none() -> None:
    disk, store, log = opened(config(min_cleanable_dirty_ratio=1, segment_bytes=100))
    filled(store, log)
    ops = len(disk.ops)
    for look in range(10):
        store.compact(NOW_MS + look * LOOK_MS)
    assert len(disk.ops) == ops
    assert len(records(log)) == 6


def test_a_quiet_log_is_compacted_in_time_for_its_lag() -> None:
    disk, store, log = opened(
        config(segment_bytes=100_000, max_compaction_lag_ms=DAY_MS, min_cleanable_dirty_ratio=1)
    )
    filled(store, log)
    for look in range(10):
        store.compact(NOW_MS + DAY_MS - look)
    assert len(log.segments) == 1
    assert len(records(log)) == 6
    for look in range(1, 4):
        store.compact(NOW_MS + DAY_MS + look * LOOK_MS)
    assert offsets(log) == [5]
    ops = len(disk.ops)
    for look in range(100):
        store.compact(NOW_MS + DAY_MS + look * LOOK_MS)
    assert len(disk.ops) == ops


def test_a_quiet_log_is_compacted_in_time_after_a_restart_too() -> None:
    settings = config(
        segment_bytes=100_000, max_compaction_lag_ms=DAY_MS, min_cleanable_dirty_ratio=1
    )
    disk, store, log = opened(settings)
    filled(store, log)
    store.close()
    store = open_store(disk, settings)
    log = store.logs[log_id(1)]
    for look in range(1, 4):
        store.compact(NOW_MS + DAY_MS + look * LOOK_MS)
    assert offsets(log) == [5]


def test_without_a_lag_a_quiet_log_keeps_its_segment() -> None:
    _, store, log = opened(config(segment_bytes=100_000, segment_ms=DAY_MS))
    filled(store, log)
    store.compact(NOW_MS + 100 * DAY_MS)
    assert len(log.segments) == 1


def test_a_swap_whose_checkpoint_found_no_room_is_not_forgotten_on_a_quiet_broker() -> None:
    disk, store, log = opened()
    filled(store, log)
    store.request_checkpoint()

    disk.fail = full_for_checkpoints
    store.compact(NOW_MS)
    assert log.compaction.is_busy
    assert len(records(log)) == 6
    disk.fail = lambda _: False
    store.compact(NOW_MS + LOOK_MS)
    assert offsets(log) == [4, 5]


def test_a_log_whose_swap_is_still_named_is_compacted_again_on_a_quiet_broker() -> None:
    disk, store, log = opened(config(min_cleanable_dirty_ratio=0))
    for number in range(6):
        append(store, log, keyed([(b"k", b"%d" % number), (b"k%d" % number, b"")]))
    store.request_checkpoint()
    checkpoints = 0

    def full_after_the_switch(op: Op) -> bool:
        nonlocal checkpoints
        if isinstance(op, Rename) and op.new == PATH:
            checkpoints += 1
            if checkpoints > 1:
                raise DiskFull("simulated")
        return False

    disk.fail = full_after_the_switch
    store.compact(NOW_MS)
    for number in range(6):
        append(store, log, keyed([(b"k%d" % number, b"x" * 100)]))
    assert log.compaction.is_named
    disk.fail = lambda _: False
    for look in range(4):
        store.compact(NOW_MS + look * LOOK_MS)
    assert offsets(log) == [10, 11, 12, 13, 14, 15, 16, 17]


def test_the_names_of_the_copies_are_durable_before_a_checkpoint_names_them() -> None:
    disk, store, log = opened(config(segment_bytes=1000))
    for number in range(40):
        append(store, log, keyed([(b"k%d" % (number % 7), b"%d" % number)]))
    store.request_checkpoint()
    first = len(disk.ops)
    store.compact(NOW_MS)
    ops = disk.ops[first:]
    directory = disk.tree.names[0][log.directory]
    copies = [at for at, op in enumerate(ops) if isinstance(op, Link) and "cleaned" in op.name]
    switch = next(
        at for at, op in enumerate(ops) if isinstance(op, Rename) and op.new == "checkpoint"
    )
    assert copies
    assert any(op == SyncDir(directory) for op in ops[max(copies) : switch])
