"""A log's bytes into a table: whole batches, both ways, and when numba is loaded."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from onceflow.errors import RecordError
from onceflow.producers.replaying import replay, replay_compiled, replay_plain
from onceflow.producers.table import ProducerTable
from tests.unit.producers.handmade_log import OTHER, PRODUCER, Log, data_batch

BOTH = pytest.mark.parametrize("way", [replay_plain, replay_compiled])


def mixed_log() -> Log:
    log = Log()
    for number in range(20):
        log.data(PRODUCER, number * 3, 3)
        log.data(-1, -1, epoch=-1)
        log.begin(OTHER, epoch=number)
        log.finish(OTHER, commit=number % 3 != 0, epoch=number + 1)
    log.begin(OTHER, epoch=20)
    return log


@BOTH
def test_a_log_gives_the_table_that_its_appends_gave(way: object) -> None:
    assert callable(way)
    log = mixed_log()
    table = ProducerTable()
    data = log.bytes_from()
    assert way(table, memoryview(data)) == len(data)
    assert table.to_bytes(log.end) == log.table.to_bytes(log.end)
    assert table.last_stable_offset(log.end) == log.table.last_stable_offset(log.end)


@BOTH
@pytest.mark.parametrize("bump", [0, 1])
@pytest.mark.parametrize("aborted", range(6))
def test_an_abort_covers_no_transaction_that_was_committed_before(
    way: object, bump: int, aborted: int
) -> None:
    """Batches are kept for the window long after what ended their transaction could be dropped."""
    assert callable(way)
    log = Log()
    for number in range(6):
        epoch = bump * number
        log.begin(PRODUCER, 0 if bump else number, epoch=epoch)
        log.finish(PRODUCER, commit=number != aborted, epoch=epoch + bump)
    log.abort(PRODUCER, epoch=6 * bump)
    table = ProducerTable()
    way(table, memoryview(log.bytes_from()))
    assert [(each.first_offset, each.last_offset) for each in table.aborted] == [
        (2 * aborted, 2 * aborted + 1)
    ]
    assert table.to_bytes(0) == log.table.to_bytes(0)


@BOTH
def test_a_batch_that_is_not_whole_is_left_for_the_next_chunk(way: object) -> None:
    assert callable(way)
    log = mixed_log()
    whole = log.bytes_from()
    last = len(log.batches[-1].buffer)
    before = Log()
    before.batches = log.batches[:-1]
    expected = before.rebuilt().to_bytes(0)
    for missing in (1, last - 61, last - 13, last - 1, last):
        table = ProducerTable()
        assert way(table, memoryview(whole[: len(whole) - missing])) == len(whole) - last
        assert table.to_bytes(0) == expected


@BOTH
def test_no_bytes_are_no_batches(way: object) -> None:
    assert callable(way)
    table = ProducerTable()
    assert way(table, memoryview(b"")) == 0
    assert list(table.producers()) == []


@BOTH
@pytest.mark.parametrize(
    ("at", "change"), [(16, b"\1"), (8, b"\0\0\0\x30"), (8, b"\xff\xff\xff\xff"), (21, b"\1\0")]
)
def test_a_header_that_is_not_sound_is_an_error(way: object, at: int, change: bytes) -> None:
    assert callable(way)
    log = mixed_log()
    data = bytearray(log.bytes_from())
    at += len(data) - len(log.batches[-1].buffer)
    data[at : at + len(change)] = change
    with pytest.raises(RecordError):
        way(ProducerTable(), memoryview(data))


@BOTH
def test_a_marker_that_is_not_sound_is_an_error(way: object) -> None:
    assert callable(way)
    log = Log()
    log.commit(PRODUCER)
    broken = data_batch(PRODUCER, -1, epoch=1, control=True, transactional=True).assign(1, 0)
    with pytest.raises(RecordError):
        way(ProducerTable(), memoryview(log.bytes_from() + bytes(broken.buffer)))


@BOTH
def test_read_only_and_writable_bytes_will_do(way: object) -> None:
    assert callable(way)
    data = mixed_log().bytes_from()
    tables = [ProducerTable(), ProducerTable()]
    way(tables[0], memoryview(data))
    way(tables[1], memoryview(bytearray(data)))
    assert tables[0].to_bytes(0) == tables[1].to_bytes(0)


def numbered(count: int, producers: int, sequence: int, step: int) -> bytes:
    """Batches of no records' bytes, quickly made: one for each number, by turns of producers."""
    template = bytes(data_batch(0, sequence).assign(0, 0).buffer)
    parts = []
    for number in range(count):
        batch = bytearray(template)
        struct.pack_into(">q", batch, 0, number)
        struct.pack_into(">qhi", batch, 43, number % producers, 0, sequence + step * number)
        parts.append(batch)
    return b"".join(parts)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(numbered(9000, 3000, 0, 1), id="more producers than there are slots"),
        pytest.param(numbered(70_000, 3, -1, 0), id="more found than there is room for"),
    ],
)
def test_the_compiled_way_goes_on_where_its_room_ends(data: bytes) -> None:
    plain, compiled = ProducerTable(), ProducerTable()
    assert replay_plain(plain, memoryview(data)) == len(data)
    assert replay_compiled(compiled, memoryview(data)) == len(data)
    assert compiled.to_bytes(0) == plain.to_bytes(0)


def test_only_a_long_log_has_numba_loaded() -> None:
    script = """
import sys
from onceflow.producers.replaying import replay
from onceflow.producers.table import ProducerTable
from tests.unit.producers.handmade_log import Log

log = Log()
for number in range(100):
    log.data(7, number)
data = log.bytes_from()
assert replay(ProducerTable(), data) == len(data)
assert "numba" not in sys.modules
table = ProducerTable()
assert replay(table, data, remaining=1000 * len(data)) == len(data)
assert "numba" in sys.modules
assert table.to_bytes(0) == log.table.to_bytes(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_replayed_transactions_have_ended_for_good() -> None:
    log = Log()
    log.begin(PRODUCER)
    log.commit(PRODUCER)
    table = ProducerTable()
    replay(table, log.bytes_from())
    assert table.first_unstable_offset(0) is None
