"""When logs are compacted, and what may happen to them meanwhile."""

from __future__ import annotations

import importlib
import random
import tracemalloc

import pytest

from onceflow.checksum import crc32c
from onceflow.errors import DiskFull, InvalidSetting
from onceflow.log.checkpoint import (
    decode as decode_checkpoint,
    encode as encode_checkpoint,
    read_checkpoint,
)
from onceflow.log.compaction.plan import DirtySegment, cleanable
from onceflow.log.config import LogConfig
from onceflow.log.store import LogStore
from onceflow.records.batch import Codec
from onceflow.runtime.background import Inline
from onceflow.testing.background import SimBackground
from onceflow.testing.disk import Link, Op, SimDisk
from tests.unit.log.compaction.keyed_log import (
    DAY_MS,
    batches_of,
    compact,
    config,
    keyed,
    opened,
    records,
    seal_active,
)
from tests.unit.log.simulated_store import (
    NOW_MS,
    RAND,
    append,
    full_for_checkpoints,
    log_id,
    new_batch,
    open_store,
)


def facts(*sizes: tuple[int, int], first: int = NOW_MS, latest: int = NOW_MS) -> list[DirtySegment]:
    return [DirtySegment(end, size, first, latest) for end, size in sizes]


def test_a_log_is_compacted_when_enough_of_it_is_dirty() -> None:
    settings = LogConfig(compact=True)
    segments = facts((10, 100), (20, 60), (30, 39))
    assert cleanable(segments, 10, NOW_MS, settings) == (0, 99 / 199)
    assert cleanable(segments, 0, NOW_MS, settings) == (3, 1.0)
    assert cleanable(facts((10, 100), (20, 101)), 10, NOW_MS, settings)[0] == 2
    assert cleanable(facts((10, 100)), 10, NOW_MS, LogConfig(min_cleanable_dirty_ratio=0))[0] == 0
    assert cleanable([], 0, NOW_MS, settings) == (0, 0.0)


def test_records_may_be_too_young_or_overdue() -> None:
    young = LogConfig(min_compaction_lag_ms=1000)
    segments = facts((10, 100), latest=NOW_MS - 1000) + facts((20, 100), latest=NOW_MS - 999)
    assert cleanable(segments, 0, NOW_MS, young)[0] == 1
    late = LogConfig(max_compaction_lag_ms=1000)
    clean = facts((10, 1000))
    assert cleanable(clean + facts((20, 1), first=NOW_MS - 1000), 10, NOW_MS, late)[0] == 0
    assert cleanable(clean + facts((20, 1), first=NOW_MS - 1001), 10, NOW_MS, late)[0] == 2


def test_what_became_of_transactions_must_be_certain() -> None:
    segments = facts((10, 100), (20, 100), (30, 100))
    settings = LogConfig(min_cleanable_dirty_ratio=0)
    assert cleanable(segments, 0, NOW_MS, settings, 29)[0] == 2
    assert cleanable(segments, 0, NOW_MS, settings, 30)[0] == 3
    assert cleanable(segments, 0, NOW_MS, settings, 9)[0] == 0


def test_compaction_holds_a_few_batches_at_a_time_however_they_grow() -> None:
    """A batch of some hundred bytes holds 4 MB here, and there is room for many of them in what is
    read at once."""
    value = bytes(4 << 20)
    _, store, log = opened(config(segment_bytes=100_000))
    for number in range(30):
        rows = [(b"%d" % (number % 20), value), (b"x", b"%d" % number)]
        append(store, log, keyed(rows, codec=Codec.ZSTD))
    append(store, log, keyed([(b"end", random.Random(1).randbytes(100_000))]))
    importlib.import_module("onceflow.log.compaction.cleaner")  # numba takes memory too
    tracemalloc.start()
    try:
        compact(store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(value)
    kept = [(key, value and len(value)) for _, key, value in records(log)]
    assert kept[:20] == [(b"%d" % number, len(value)) for number in (*range(10, 20), *range(10))]
    assert kept[20:] == [(b"x", 2), (b"end", 100_000)]


def test_a_compacted_log_closes_segments_in_time_for_the_lag() -> None:
    _, store, log = opened(
        config(segment_bytes=100_000, max_compaction_lag_ms=500, min_cleanable_dirty_ratio=1)
    )
    append(store, log, keyed([(b"a", b"1")]))
    append(store, log, keyed([(b"a", b"2")], timestamp=NOW_MS + 500))
    assert len(log.segments) == 1
    append(store, log, keyed([(b"a", b"3")], timestamp=NOW_MS + 501))
    assert len(log.segments) == 2
    compact(store, NOW_MS + 500)
    assert len(records(log)) == 3
    compact(store, NOW_MS + 502)
    assert [record[0] for record in records(log)] == [1, 2]


def test_what_is_not_to_be_compacted_or_deleted_is_not() -> None:
    _, store, log = opened(config(compact=False, retention_ms=0))
    for _ in range(5):
        append(store, log, keyed([(b"a", b"1" * 100)]))
    compact(store)
    store.enforce_retention(NOW_MS + DAY_MS)
    assert len(records(log)) == 5
    log.config = LogConfig(segment_bytes=100, retention_ms=0)
    store.enforce_retention(NOW_MS + DAY_MS)
    assert log.start_offset == 5


def test_compact_and_delete_do_both() -> None:
    _, store, log = opened(config(delete=True, retention_ms=DAY_MS))
    for number in range(6):
        append(store, log, keyed([(b"a", b"%d" % number)]))
    seal_active(store, log)
    compact(store)
    assert [record[0] for record in records(log)] == [5, 6]
    append(store, log, keyed([(b"b", b"z" * 100)], timestamp=NOW_MS + 2 * DAY_MS))
    store.enforce_retention(NOW_MS + 2 * DAY_MS)
    assert [record[0] for record in records(log)] == [7]


def test_a_log_with_records_that_make_no_sense_is_left_as_it_is() -> None:
    disk, store, log = opened()
    for _ in range(4):
        append(store, log, new_batch(3))
    seal_active(store, log)
    before = [bytes(batch.buffer) for batch in batches_of(log)]
    compact(store)
    assert store.quarantine.failures == {"compaction": 1}
    assert [bytes(batch.buffer) for batch in batches_of(log)] == before
    assert not [entry.name for entry in disk.entries(log.directory) if "cleaned" in entry.name]
    assert store.failure is None
    assert not log.compaction.is_busy


def test_no_room_for_the_copy_puts_compaction_off() -> None:
    disk, store, log = opened()
    for number in range(8):
        append(store, log, keyed([(b"a", b"%d" % number)]))
    seal_active(store, log)

    def full_for_copies(op: Op) -> bool:
        if isinstance(op, Link) and "cleaned" in op.name:
            raise DiskFull("simulated")
        return False

    disk.fail = full_for_copies
    compact(store)
    assert store.failure is None
    assert len(records(log)) == 9
    disk.fail = lambda _: False
    compact(store)
    assert len(records(log)) == 2


@pytest.mark.parametrize("then", ["goes on", "is cut", "is deleted", "is stopped"])
def test_a_compaction_whose_checkpoint_finds_no_room_waits_for_it(then: str) -> None:
    disk, store, log = opened()
    for number in range(8):
        append(store, log, keyed([(b"a", b"%d" % number)]))
    store.request_checkpoint()
    disk.fail = full_for_checkpoints
    store.compact(NOW_MS + 1000)
    assert len(records(log)) == 8
    assert log.compaction.swap is not None
    disk.fail = lambda _: False
    if then == "is cut":
        store.truncate(log, 6)
        assert [record[0] for record in records(log)] == [0, 1, 2, 3, 4, 5]
    elif then == "is deleted":
        store.delete([log])
    if then != "is stopped":
        store.request_checkpoint()
        assert not log.compaction.is_busy
        compact(store)
    crashed = SimDisk(disk.tree)
    store.close()
    expected = {"is cut": [5], "is deleted": None}.get(then, [6, 7])
    for image in (disk, crashed):
        again = open_store(image, config())
        found = again.logs.get(log.log_id)
        if then != "is stopped" or image is disk:
            assert expected == (found and [record[0] for record in records(found)])
        names = [entry.name for entry in image.entries(".") if entry.is_dir]
        assert not any("cleaned" in e.name for name in names for e in image.entries(name))
        assert names == ["journal", *([found.directory] if found else [])]


@pytest.mark.parametrize("seed", range(12))
def test_a_log_may_be_deleted_truncated_or_the_store_stopped_while_it_is_compacted(
    seed: int,
) -> None:
    disk, background = SimDisk(), SimBackground(random.Random(seed))
    store = LogStore.open(disk, background, RAND, config())
    created = store.create("state", [log_id(1), log_id(2)])
    background.wait(lambda: created.done)
    log, other = store.logs[log_id(1)], store.logs[log_id(2)]
    for number in range(20):
        append(store, log, keyed([(b"a", b"%d" % number)]))
        ticket = append(store, other, keyed([(b"a", b"%d" % number)]))
    background.wait(lambda: ticket.done)
    store.request_checkpoint()
    background.close()
    store.compact(NOW_MS + 1000)
    for _ in range(seed * 7):
        background.step()
    if seed % 3 == 0:
        store.delete([log])
    elif seed % 3 == 1:
        store.truncate(log, 19)
        assert [record[0] for record in records(log)] in ([], [18], list(range(19)))
    store.close()
    background.close()
    directories = [entry.name for entry in disk.entries(".") if entry.name.startswith("state")]
    assert len(directories) == len(store.logs)
    for each in directories:
        assert not [entry.name for entry in disk.entries(each) if "cleaned" in entry.name]
    again = LogStore.open(disk, Inline(), RAND, config())
    assert again.report.clean
    assert records(again.logs[log_id(2)])[-1] == (19, b"a", b"19")


def test_more_keys_than_fit_the_memory_are_compacted_in_several_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onceflow.log.compaction.cleaner._KEY_MEMORY", 1000)
    _, store, log = opened(config(min_cleanable_dirty_ratio=0))
    for number in range(60):
        append(store, log, keyed([(b"k%d" % (number % 20), b"%d" % number)]))
    seal_active(store, log)
    ends = []
    for _ in range(40):
        compact(store)
        ends.append(log.compaction.cleaned_to)
    assert ends == sorted(ends)
    assert len(set(ends)) > 3
    assert [record[0] for record in records(log)] == list(range(40, 61))


def test_settings_of_compaction_have_their_ranges() -> None:
    with pytest.raises(InvalidSetting, match=r"min_cleanable_dirty_ratio is 1\.5"):
        LogConfig(min_cleanable_dirty_ratio=1.5)
    with pytest.raises(InvalidSetting, match="max_compaction_lag_ms is 0"):
        LogConfig(max_compaction_lag_ms=0)


def test_a_checkpoint_of_an_older_format_is_read() -> None:
    disk, store, log = opened()
    append(store, log, keyed([(b"a", b"1")]))
    store.close()
    checkpoint = read_checkpoint(disk)
    assert checkpoint is not None
    body = encode_checkpoint(checkpoint).partition(b"\n")[2][:-1]
    assert body.count(b",0,[],[],null]") == 1
    for version, row in ((1, b"]"), (2, b",0,[]]"), (3, b",0,[],[],null]")):
        older = body.replace(b",0,[],[],null]", row).replace(b',"gone":[]', b"")
        assert older != body
        head = b"onceflow-checkpoint %d %08x\n" % (version, crc32c(older, crc32c(b"%d" % version)))
        assert decode_checkpoint(head + older + b"\n") == checkpoint
