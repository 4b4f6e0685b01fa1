"""Random logs of transactions, idempotent and plain batches: what compaction leaves is what a
reader of committed records, and whoever rebuilds the producers' state, must find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given, settings, strategies as st

from onceflow.log.config import LogConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import HEADER_SIZE, NewBatch, StoredBatch, seal
from onceflow.records.control import marker
from onceflow.testing.disk import SimDisk
from tests.doses import examples
from tests.unit.log.compaction.keyed_log import DAY_MS, keyed
from tests.unit.log.producer_companion import (
    ProducerModel,
    Record,
    batches_from,
    followed_append,
    read_committed,
    restored,
)
from tests.unit.log.simulated_store import NOW_MS, log_id, open_store

KEYS = [b"a", b"b", b"c", b"d", b"e"]
LAST_KEY = 4
Rows = list[tuple[bytes, bytes | None]]


class Send(NamedTuple):
    """A batch: producers 0 to 2 send in transactions, 3 and 4 are idempotent, 5 is neither."""

    producer: int
    keys: tuple[int, ...]
    deletes: bool


class End(NamedTuple):
    """A marker for one of the first three; with `bump` of the next epoch, as of version 2."""

    producer: int
    commit: bool
    bump: bool


class Compact(NamedTuple):
    """Some time later."""

    after_ms: int


class Restart(NamedTuple):
    """After a clean stop, or after a crash; perhaps the newest snapshot is lost."""

    clean: bool
    loses: bool


Step = Send | End | Compact | Restart
steps = st.one_of(
    st.builds(
        Send,
        st.integers(0, 5),
        st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(Send, st.integers(0, 2), st.tuples(st.integers(0, 3)), st.just(False)),
    st.builds(End, st.integers(0, 2), st.booleans(), st.booleans()),
    st.builds(End, st.integers(0, 2), st.booleans(), st.booleans()),
    st.builds(Compact, st.sampled_from([0, 1000, DAY_MS])),
    st.builds(Restart, st.booleans(), st.booleans()),
)


def config(segment_bytes: int) -> StoreConfig:
    return StoreConfig(
        log=LogConfig(
            segment_bytes=segment_bytes,
            compact=True,
            delete=False,
            index_interval_bytes=0,
            min_cleanable_dirty_ratio=0,
            delete_retention_ms=DAY_MS,
        ),
        reserve_bytes=0,
    )


@dataclass(slots=True)
class World:
    """A log, and beside it the whole history that compaction never touches."""

    config: StoreConfig
    forgets: bool
    """Whether all producers have expired by the time of a compaction."""
    disk: SimDisk = field(default_factory=SimDisk)
    now_ms: int = NOW_MS
    history: list[StoredBatch] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    store: LogStore = field(init=False)
    log: PartitionLog = field(init=False)
    whole: ProducerModel = field(init=False)

    def __post_init__(self) -> None:
        self.store = open_store(self.disk, self.config)
        self.store.create("state", [log_id(1)])
        self.log = self.store.logs[log_id(1)]
        model = self.log.companion = ProducerModel(self.log)
        model.forgets = self.forgets
        self.whole = ProducerModel(self.log)

    def take(self, step: Step) -> None:
        match step:
            case Send():
                self.send(step)
            case End():
                self.end(step)
            case Compact():
                self.now_ms += step.after_ms
                self.store.request_checkpoint()
                self.store.compact(self.now_ms)
                self.check()
            case Restart():
                self.restart(step)

    def append(self, batch: NewBatch) -> None:
        stored = followed_append(self.store, self.log, batch)
        self.history.append(StoredBatch.parse(bytes(stored.buffer)))
        self.whole.apply(stored)

    def send(self, step: Send) -> None:
        self.now_ms += 1
        at = self.log.end_offset
        rows: Rows = [
            (KEYS[key], None if step.deletes and number == 0 else b"v%d" % (at + number))
            for number, key in enumerate(step.keys)
        ]
        producer = step.producer if step.producer < 5 else -1
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        self.sequences[producer] = sequence + len(rows)
        batch = keyed(
            rows,
            producer_id=producer,
            sequence=sequence,
            timestamp=self.now_ms,
            transactional=0 <= producer < 3,
        )
        self.append(with_epoch(batch, self.epochs.get(producer, 0)) if producer >= 0 else batch)

    def end(self, step: End) -> None:
        epoch = self.epochs.get(step.producer, 0)
        if step.bump:
            epoch = self.epochs[step.producer] = epoch + 1
            self.sequences[step.producer] = 0
        self.append(
            marker(
                step.producer,
                epoch,
                commit=step.commit,
                coordinator_epoch=0,
                timestamp_ms=self.now_ms,
            )
        )

    def restart(self, step: Restart) -> None:
        if step.clean:
            self.store.close()
        else:
            self.disk = SimDisk(self.disk.tree)
        names = [entry.name for entry in self.disk.entries(self.log.directory)]
        snapshots = [name for name in names if name.endswith(".producers")]
        if step.loses and snapshots:
            self.disk.unlink(f"{self.log.directory}/{snapshots[-1]}")
        self.store = open_store(self.disk, self.config)
        self.log = self.store.logs[log_id(1)]
        self.whole.log = self.log
        restored(self.log).forgets = self.forgets
        self.check()

    # --- what must hold -----------------------------------------------------------------------

    def stable_end(self, model: ProducerModel) -> int:
        unstable = model.first_unstable()
        return self.log.high_watermark if unstable is None else unstable

    def check(self) -> None:
        model = self.log.companion
        assert isinstance(model, ProducerModel)
        assert self.stable_end(model) == self.stable_end(self.whole)
        expected = self.committed(self.history, self.whole, 0)
        found = self.committed(batches_from(self.log, 0), model, 0)
        assert set(found) <= set(expected), "a record that was never committed, or not there"
        assert found == sorted(found)
        self.check_kept(expected, found)
        self.check_any_start(model, found)
        self.check_producers(model)

    def committed(
        self, batches: Sequence[StoredBatch], model: ProducerModel, start: int
    ) -> list[Record]:
        """What a consumer at an offset gets, up to the last stable offset."""
        end = self.stable_end(model)
        stable = [batch for batch in batches if batch.header.base_offset < end]
        return [
            record
            for record in read_committed(stable, model.aborted(start, end))
            if record[0] >= start
        ]

    def check_kept(self, expected: list[Record], found: list[Record]) -> None:
        """Whatever is not compacted is there, and the last committed record of each key, unless
        it only says that the key is gone."""
        latest = {key: (offset, value) for offset, key, value in expected}
        there = set(found)
        for offset, key, value in expected:
            is_latest = latest[key] == (offset, value) and value is not None
            if is_latest or offset >= self.log.compaction.cleaned_to:
                assert (offset, key, value) in there
        last_found = {key: value for _, key, value in found}
        for key, (_, value) in latest.items():
            assert last_found.get(key) == value

    def check_any_start(self, model: ProducerModel, found: list[Record]) -> None:
        for start in range(self.stable_end(model) + 1):
            part = self.committed(batches_from(self.log, start), model, start)
            assert part == [record for record in found if record[0] >= start]

    def check_producers(self, model: ProducerModel) -> None:
        """From the log alone, and from a snapshot and the log's tail."""
        alone = ProducerModel(self.log).apply_all(batches_from(self.log, 0))
        for each in (alone, model):
            assert each.open == self.whole.open
            if not self.forgets:
                assert each.producers == self.whole.producers
            else:
                assert each.producers.keys() <= self.whole.producers.keys()


def with_epoch(batch: NewBatch, epoch: int) -> NewBatch:
    header = batch.header
    return seal(
        bytearray(HEADER_SIZE) + bytes(batch.buffer[HEADER_SIZE:]),
        attributes=header.attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=epoch,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
    )


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(steps, min_size=5, max_size=40),
    st.sampled_from([100, 250, 600]),
    st.booleans(),
)
def test_compaction_keeps_what_is_committed_and_who_sent_it(
    program: list[Step], segment_bytes: int, forgets: bool
) -> None:
    world = World(config(segment_bytes), forgets)
    for step in program:
        world.take(step)
    for producer in list(world.whole.open):  # an open one holds up all behind it
        world.take(End(producer, commit=producer > 0, bump=producer > 1))
    for _ in range(5):  # until all that may go has gone
        world.take(Send(5, (LAST_KEY,) * (segment_bytes // 50), deletes=False))
        world.take(Compact(DAY_MS))
    world.take(Restart(clean=True, loses=False))
