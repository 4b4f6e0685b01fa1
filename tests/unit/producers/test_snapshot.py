"""Snapshots of a table: everything comes back, and nothing that is wrong is believed."""

from __future__ import annotations

import struct

import pytest

from onceflow.checksum import crc32c
from onceflow.producers.aborted import Aborted
from onceflow.producers.replaying import replay_plain
from onceflow.producers.snapshot import SnapshotInvalid
from onceflow.producers.state import ProducerMemory, WrittenBatch, judge
from onceflow.producers.table import ProducerTable
from tests.unit.producers.handmade_log import OTHER, PRODUCER, Log, header


def busy_log() -> Log:
    """A full window across the wrap, a marker alone, two open transactions, three aborted."""
    log = Log()
    for number in range(7):
        log.data(PRODUCER, (2**31 - 30 + 10 * number) % 2**31, 10, timestamp=-1 + number)
    log.finish(100, commit=True, epoch=32767, coordinator_epoch=2**31 - 1, timestamp=2**62)
    log.begin(2**63 - 1)
    log.begin(OTHER)
    log.abort(OTHER, coordinator_epoch=3)
    for epoch in (1, 2):
        log.begin(101, epoch=epoch)
        log.abort(101, epoch=epoch + 1)
    log.begin(OTHER, 1)
    return log


def test_everything_comes_back() -> None:
    log = busy_log()
    data = log.table.to_bytes(log.end)
    table = ProducerTable.from_bytes(data, log.end)
    assert dict(table.producers()) == dict(log.table.producers())
    assert table.open_transactions() == log.table.open_transactions()
    assert len(table.open_transactions()) == 2
    assert list(table.aborted) == list(log.table.aborted)
    assert len(table.aborted) == 3
    assert table.last_stable_offset(log.end) == log.table.last_stable_offset(log.end)
    assert table.to_bytes(log.end) == data


def test_all_five_batches_are_recognised_after_a_restart() -> None:
    log = Log()
    for number in range(6):
        log.data(PRODUCER, number)
    table = ProducerTable.from_bytes(log.table.to_bytes(6), 6)
    producer = table.find(PRODUCER)
    for number in range(1, 6):
        repeat = judge(producer, header(number), from_zero=False)
        assert repeat == WrittenBatch(number, number, number, number, 1000)


def test_a_restored_window_still_holds_five() -> None:
    log = Log()
    for number in range(5):
        log.data(PRODUCER, number)
    log.table = ProducerTable.from_bytes(log.table.to_bytes(5), 5)
    log.data(PRODUCER, 5)
    producer = log.table.find(PRODUCER)
    assert producer is not None
    assert [written.first_sequence for written in producer.window] == [1, 2, 3, 4, 5]


def test_transactions_that_ended_are_stable_after_a_restart() -> None:
    log = Log()
    log.begin(PRODUCER)
    log.commit(PRODUCER)
    table = ProducerTable.from_bytes(log.table.to_bytes(2), 2)
    assert table.first_unstable_offset(0) is None


def test_an_empty_table_has_a_snapshot() -> None:
    table = ProducerTable.from_bytes(ProducerTable().to_bytes(0), 0)
    assert list(table.producers()) == []
    assert len(table.aborted) == 0


def test_every_flipped_bit_is_noticed() -> None:
    log = busy_log()
    data = bytearray(log.table.to_bytes(log.end))
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            with pytest.raises(SnapshotInvalid):
                ProducerTable.from_bytes(bytes(data), log.end)
            data[position] ^= 1 << bit
    ProducerTable.from_bytes(bytes(data), log.end)


def test_every_cut_and_every_byte_too_many_is_noticed() -> None:
    log = busy_log()
    data = log.table.to_bytes(log.end)
    for size in range(len(data)):
        with pytest.raises(SnapshotInvalid):
            ProducerTable.from_bytes(data[:size], log.end)
    with pytest.raises(SnapshotInvalid):
        ProducerTable.from_bytes(data + b"\0", log.end)


def resealed(body: bytes) -> bytes:
    return struct.pack(">I", crc32c(body)) + body


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: b"\0\3" + body[2:], "of version 3, not 2"),
        (lambda body: body[:-1], "aborted transactions"),
        (lambda body: body + b"\0", "aborted transactions"),
        (lambda body: body[:10] + b"\0\0\xff\0" + body[14:], "ends too early"),
    ],
)
def test_a_sound_checksum_does_not_excuse_wrong_contents(change: object, message: str) -> None:
    assert callable(change)
    log = busy_log()
    body = log.table.to_bytes(log.end)[4:]
    with pytest.raises(SnapshotInvalid, match=message):
        ProducerTable.from_bytes(resealed(change(body)), log.end)


def test_a_snapshot_of_version_1_is_read_and_silence_begins_at_the_start() -> None:
    """One that an older broker wrote: an open transaction, a producer with two batches, an aborted
    transaction. Nobody noted for how long they had been silent."""
    body = struct.pack(">HqII", 1, 9, 2, 1)
    body += struct.pack(">qhiqqB", 7, 3, 5, 1000, -1, 2)
    body += struct.pack(">iiqq", 0, 1, 0, 900) + struct.pack(">iiqq", 2, 0, 2, 1000)
    body += struct.pack(">qhiqqB", 8, 0, -1, 2000, 4, 0)
    body += struct.pack(">qqqq", 9, 5, 6, 7)
    table = ProducerTable.from_bytes(resealed(body), 9)
    assert dict(table.producers()) == {
        7: ProducerMemory(
            3, 1000, 5, None, [WrittenBatch(0, 1, 0, 1, 900), WrittenBatch(2, 2, 2, 2, 1000)]
        ),
        8: ProducerMemory(0, 2000, -1, 4),
    }
    assert list(table.aborted) == [Aborted(9, 5, 6, 7)]
    assert table.expire(10**15, 1000) == 0, "the first look only notes that they are silent"
    assert table.expire(10**15 + 999, 1000) == 0
    assert table.expire(10**15 + 1000, 1000) == 1
    assert ProducerTable.from_bytes(table.to_bytes(9), 9).find(7) is None


def test_silence_goes_on_after_a_restart_and_time_without_a_broker_does_not_count() -> None:
    log = Log()
    log.data(PRODUCER, 0)
    log.table.expire(5_000, 1000)
    log.table.expire(5_900, 1000)
    log.data(OTHER, 0)
    table = ProducerTable.from_bytes(log.table.to_bytes(log.end), log.end)
    assert table.expire(99, 1000) == 0
    assert table.expire(100, 1000) == 1
    assert table.find(PRODUCER) is None
    table = ProducerTable.from_bytes(table.to_bytes(log.end), log.end)
    assert table.expire(899, 1000) == 0, "silent for 100 ms before the restart"
    assert table.expire(900, 1000) == 1


def test_a_batch_behind_the_snapshot_is_a_sign_of_life() -> None:
    log = Log()
    log.data(PRODUCER, 0)
    log.table.expire(0, 1000)
    log.table.expire(999, 1000)
    snapshot, end = log.table.to_bytes(log.end), log.end
    log.data(PRODUCER, 1)
    table = ProducerTable.from_bytes(snapshot, end)
    replay_plain(table, memoryview(log.bytes_from(1)))
    assert table.expire(1, 1000) == 0
    assert table.expire(1000, 1000) == 0
    assert table.expire(1001, 1000) == 1


def test_a_snapshot_of_another_offset_is_refused() -> None:
    with pytest.raises(SnapshotInvalid, match="as of offset 5, not 6"):
        ProducerTable.from_bytes(ProducerTable().to_bytes(5), 6)
