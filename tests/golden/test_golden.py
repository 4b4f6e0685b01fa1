"""Segments that four foreign writers filled, on a real broker, come back as what was written."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from onceflow.errors import BatchMalformed
from onceflow.records.batch import NewBatch, StoredBatch, iter_stored, next_sequence
from onceflow.records.columns import decode
from onceflow.records.control import Marker, MarkerType, marker, parse_marker
from tests.golden.corpus import CELLS, Cell, Header, Mode, Record, segment

every_cell = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
transactional_cells = pytest.mark.parametrize(
    "cell",
    [cell for cell in CELLS if cell.case.mode is Mode.TRANSACTIONAL],
    ids=lambda cell: cell.name,
)


def data_batches(cell: Cell) -> list[StoredBatch]:
    return [batch for batch in iter_stored(segment(cell)) if not batch.header.is_control]


def control_batches(cell: Cell) -> list[StoredBatch]:
    return [batch for batch in iter_stored(segment(cell)) if batch.header.is_control]


def rows(decoded: pa.RecordBatch) -> list[tuple[int, Record]]:
    """(offset, record) of every row, as the corpus writes them."""
    at = decoded.schema.get_field_index("timestamp")
    milliseconds = decoded.column(at).cast(pa.int64())
    return [
        (
            row["offset"],
            Record(
                row["key"],
                row["value"],
                row["timestamp"],
                tuple(Header(header["key"], header["value"]) for header in row["headers"]),
            ),
        )
        for row in decoded.set_column(at, "timestamp", milliseconds).to_pylist()
    ]


def written(cell: Cell) -> list[tuple[int, Record]]:
    """(offset, record) of everything the writer wrote; a marker takes the offset between."""
    committed = list(enumerate(cell.records))
    return committed + list(enumerate(cell.case.aborted, start=len(committed) + 1))


@every_cell
def test_records_come_back_as_written(cell: Cell) -> None:
    decoded = decode(list(iter_stored(segment(cell))))
    assert decoded.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert rows(decoded) == written(cell)


@every_cell
def test_batches_fill_the_segment_and_use_the_codec(cell: Cell) -> None:
    batches = list(iter_stored(segment(cell), expected_base_offset=0))
    assert b"".join(batch.buffer for batch in batches) == segment(cell)
    for before, after in pairwise(batches):
        assert after.header.base_offset == before.header.next_offset
    assert {batch.header.codec.value for batch in data_batches(cell)} == {cell.codec.value}


@every_cell
def test_a_client_may_send_it_and_a_log_gives_it_its_place_again(cell: Cell) -> None:
    for stored in data_batches(cell):
        sent = bytearray(stored.buffer)
        sent[:8] = bytes(8)
        new = NewBatch.parse(sent)
        assert new.header == stored.header._replace(base_offset=0)
        placed = new.assign(stored.header.base_offset, stored.header.leader_epoch)
        assert placed.buffer == stored.buffer


@every_cell
def test_producer_fields_follow_the_mode(cell: Cell) -> None:
    headers = [batch.header for batch in data_batches(cell)]
    transactional = cell.case.mode is Mode.TRANSACTIONAL
    assert {header.is_transactional for header in headers} == {transactional}
    if cell.case.mode is Mode.PLAIN:
        assert {(header.producer_id, header.producer_epoch) for header in headers} == {(-1, -1)}
        return
    assert headers[0].producer_id >= 0
    assert headers[0].base_sequence == 0
    for before, after in pairwise(headers):
        assert after.producer_id == before.producer_id
        # Kafka's second transaction protocol gives every transaction an epoch of its own.
        same_epoch = after.producer_epoch == before.producer_epoch
        following = next_sequence(before.base_sequence, before.record_count)
        assert after.base_sequence == (following if same_epoch else 0)


def markers(cell: Cell) -> list[tuple[StoredBatch, Marker]]:
    found = [(batch, parse_marker(batch)) for batch in control_batches(cell)]
    return [(batch, read) for batch, read in found if read is not None]


@transactional_cells
def test_markers_tell_commit_from_abort(cell: Cell) -> None:
    end_of_committed = len(cell.records)
    end_of_aborted = end_of_committed + 1 + len(cell.case.aborted)
    assert [(batch.header.base_offset, read.type) for batch, read in markers(cell)] == [
        (end_of_committed, MarkerType.COMMIT),
        (end_of_aborted, MarkerType.ABORT),
    ]
    producer = data_batches(cell)[0].header.producer_id
    assert {read.producer_id for _, read in markers(cell)} == {producer}


@transactional_cells
def test_our_markers_are_the_broker_s_own_bytes(cell: Cell) -> None:
    for batch, read in markers(cell):
        ours = marker(
            read.producer_id,
            read.producer_epoch,
            commit=read.type is MarkerType.COMMIT,
            coordinator_epoch=read.coordinator_epoch,
            timestamp_ms=read.timestamp_ms,
        )
        stored = ours.assign(batch.header.base_offset, batch.header.leader_epoch)
        assert stored.buffer == batch.buffer


@transactional_cells
def test_a_client_may_not_send_markers(cell: Cell) -> None:
    for batch in control_batches(cell):
        sent = bytearray(batch.buffer)
        sent[:8] = bytes(8)
        with pytest.raises(BatchMalformed, match="control"):
            NewBatch.parse(sent)


def test_ten_thousand_records_lie_in_large_batches() -> None:
    for cell in CELLS:
        if cell.case.name == "tenthousand":
            counts = [batch.header.record_count for batch in data_batches(cell)]
            assert sum(counts) == 10_000
            assert max(counts) >= 5_000
