"""A log made by hand for the tests of `onceflow.producers`: batches that have their offsets."""

from __future__ import annotations

from onceflow.producers.replaying import replay_plain
from onceflow.producers.table import ProducerTable
from onceflow.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    NewBatch,
    StoredBatch,
    seal,
)
from onceflow.records.control import marker, parse_marker

PRODUCER = 7
OTHER = 8


def data_batch(
    producer_id: int,
    sequence: int,
    records: int = 1,
    *,
    epoch: int = 0,
    transactional: bool = False,
    timestamp: int = 1000,
    emptied: bool = False,
    control: bool = False,
) -> NewBatch:
    """Nobody here looks into the records, so they are bytes without a meaning."""
    return seal(
        bytearray(HEADER_SIZE + (0 if emptied else records)),
        attributes=transactional * TRANSACTIONAL_BIT | control * CONTROL_BIT,
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=0 if emptied else records,
    )


def header(
    sequence: int, records: int = 1, *, epoch: int = 0, transactional: bool = False
) -> BatchHeader:
    """Of a batch that `PRODUCER` sends."""
    return data_batch(PRODUCER, sequence, records, epoch=epoch, transactional=transactional).header


class Log:
    """Appends, and folds what it appends into a table, as a partition does."""

    def __init__(self) -> None:
        self.table = ProducerTable()
        self.batches: list[StoredBatch] = []
        self.end = 0

    def append(self, batch: NewBatch) -> StoredBatch:
        stored = batch.assign(self.end, 0)
        has_marker = stored.header.is_control and stored.header.record_count
        self.table.apply(stored.header, parse_marker(stored) if has_marker else None)
        self.batches.append(stored)
        self.end = stored.header.next_offset
        return stored

    def data(
        self,
        producer_id: int,
        sequence: int,
        records: int = 1,
        *,
        epoch: int = 0,
        transactional: bool = False,
        timestamp: int = 1000,
        emptied: bool = False,
    ) -> BatchHeader:
        return self.append(
            data_batch(
                producer_id,
                sequence,
                records,
                epoch=epoch,
                transactional=transactional,
                timestamp=timestamp,
                emptied=emptied,
            )
        ).header

    def begin(self, producer_id: int, sequence: int = 0, records: int = 1, epoch: int = 0) -> int:
        """A transactional batch; its first offset."""
        return self.data(
            producer_id, sequence, records, epoch=epoch, transactional=True
        ).base_offset

    def finish(
        self,
        producer_id: int,
        *,
        commit: bool,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        timestamp: int = 1000,
    ) -> int:
        """A marker; its offset."""
        return self.append(
            marker(
                producer_id,
                epoch,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                timestamp_ms=timestamp,
            )
        ).header.base_offset

    def commit(self, producer_id: int, epoch: int = 0, coordinator_epoch: int = 0) -> int:
        return self.finish(
            producer_id, commit=True, epoch=epoch, coordinator_epoch=coordinator_epoch
        )

    def abort(self, producer_id: int, epoch: int = 0, coordinator_epoch: int = 0) -> int:
        return self.finish(
            producer_id, commit=False, epoch=epoch, coordinator_epoch=coordinator_epoch
        )

    def bytes_from(self, index: int = 0) -> bytes:
        return b"".join(bytes(batch.buffer) for batch in self.batches[index:])

    def rebuilt(self) -> ProducerTable:
        """The table that a start builds from the whole log."""
        table = ProducerTable()
        replay_plain(table, memoryview(self.bytes_from()))
        return table
