"""Snapshots of a table: everything comes back, and nothing that is wrong is believed."""

from __future__ import annotations

import struct

import pytest

from onceflow.checksum import crc32c
from onceflow.producers.snapshot import SnapshotInvalid
from onceflow.producers.state import Written, judge
from onceflow.producers.table import ProducerTable
from tests.unit.producers_helpers import OTHER, PRODUCER, Log, header


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
        assert repeat == Written(number, number, number, number, 1000)


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
        (lambda body: b"\0\2" + body[2:], "of version 2, not 1"),
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


def test_a_snapshot_of_another_offset_is_refused() -> None:
    with pytest.raises(SnapshotInvalid, match="as of offset 5, not 6"):
        ProducerTable.from_bytes(ProducerTable().to_bytes(5), 6)
