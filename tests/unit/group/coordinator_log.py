"""The log of a group coordinator on a bench: real batches, and durability in the test's hands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from onceflow.errors import OnceflowError
from onceflow.log.journal.journal import Ticket
from onceflow.records.batch import NewBatch, StoredBatch
from onceflow.records.control import marker
from onceflow.records.plain import PlainRecord, read_records, write_records
from onceflow.wire.transactions import ProducerIdAndEpoch

Record = tuple[bytes, bytes | None]

WALL_MS = 1_700_000_000_000


class BenchLog:
    """Keeps what is appended. While `is_holding`, appends become durable on `release` only."""

    def __init__(self) -> None:
        self.batches: dict[int, list[StoredBatch]] = {}
        self.is_holding = False
        self.failure: Exception | None = None
        self._ends: Counter[int] = Counter()
        self._held: list[tuple[int, StoredBatch, Ticket]] = []

    def append(
        self, partition: int, records: Sequence[Record], producer: ProducerIdAndEpoch | None
    ) -> tuple[int, Ticket]:
        plain = [PlainRecord(*each) for each in records]
        if producer is None:
            return self._append(partition, write_records(plain, WALL_MS))
        batch = write_records(
            plain,
            WALL_MS,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            transactional=True,
        )
        return self._append(partition, batch)

    def append_marker(self, partition: int, producer_id: int, *, commit: bool) -> Ticket:
        """As the transaction coordinator does it, past the groups."""
        ended = marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp_ms=WALL_MS)
        return self._append(partition, ended)[1]

    def _append(self, partition: int, batch: NewBatch) -> tuple[int, Ticket]:
        if isinstance(self.failure, OnceflowError) and not self.is_holding:
            raise self.failure
        stored = batch.assign(self._ends[partition], 0)
        self._ends[partition] = stored.header.next_offset
        ticket = Ticket()
        self._held.append((partition, stored, ticket))
        if not self.is_holding:
            self.release()
        return stored.header.base_offset, ticket

    @property
    def held(self) -> int:
        return len(self._held)

    def release(self, number: int | None = None) -> None:
        held = self._held[:number]
        del self._held[:number]
        for partition, batch, ticket in held:
            if self.failure is None:
                self.batches.setdefault(partition, []).append(batch)
            ticket.complete(self.failure)

    def records(self) -> Iterator[PlainRecord]:
        """Everything durable but for markers."""
        for batches in self.batches.values():
            for batch in batches:
                if not batch.header.is_control:
                    yield from read_records(batch)

    def copy(self) -> BenchLog:
        """What a crash leaves."""
        log = BenchLog()
        log.batches = {partition: list(batches) for partition, batches in self.batches.items()}
        for partition, batches in log.batches.items():
            log._ends[partition] = batches[-1].header.next_offset
        return log
