"""Whatever timestamps clients choose, and however often the broker stops: a producer is remembered
for as long as was promised, and not for ever. And a snapshot that is made while all of that goes on
is the one of the moment in which it was begun."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings, strategies as st

from onceflow.producers.draft import SnapshotDraft
from onceflow.producers.replaying import replay_compiled, replay_plain
from onceflow.producers.state import WrittenBatch, judge
from onceflow.producers.table import ProducerTable
from onceflow.records.batch import BatchHeader
from onceflow.wire.error_codes import ErrorCode
from tests.doses import examples
from tests.unit.producers.handmade_log import Log, data_batch

KEPT_MS = 1000
IDS = range(1, 6)


class Send(NamedTuple):
    producer_id: int
    transactional: bool
    timestamp: int


class End(NamedTuple):
    producer_id: int
    commit: bool
    timestamp: int


class Pass(NamedTuple):
    """Time, while the broker runs."""

    ms: int


class Look(NamedTuple):
    """For producers that are silent, at some of them or at all."""

    among: frozenset[int] | None


class Begin(NamedTuple):
    """A snapshot."""


class Advance(NamedTuple):
    """All snapshots that are not finished, by so many producers."""

    most: int


class Restart(NamedTuple):
    """From the newest snapshot that is finished, or from the whole log, in one way or another."""

    from_snapshot: bool
    compiled: bool


ids = st.sampled_from(IDS)
timestamps = st.sampled_from([-(2**63), -1, 0, 10**12, 2**63 - 1])
steps = st.lists(
    st.one_of(
        st.builds(Send, ids, st.booleans(), timestamps),
        st.builds(Send, ids, st.booleans(), timestamps),
        st.builds(End, ids, st.booleans(), timestamps),
        st.builds(Pass, st.sampled_from([1, 100, 500, 999, 1000, 5000])),
        st.builds(Look, st.none() | st.frozensets(ids)),
        st.builds(Look, st.none()),
        st.builds(Begin),
        st.builds(Advance, st.integers(1, 3)),
        st.builds(Restart, st.booleans(), st.booleans()),
    ),
    max_size=60,
)


class Taken(NamedTuple):
    """A snapshot, and what it has to say."""

    draft: SnapshotDraft
    batches: int
    end: int
    state: object


class Walk:
    def __init__(self) -> None:
        self.log = Log()
        self.now_ms = 0
        self.started_ms = 0
        self.last_sent: dict[int, tuple[BatchHeader, int]] = {}
        self.written_ms: dict[int, int] = {}
        self.noticed_ms: dict[int, int] = {}
        self.taken: list[Taken] = []

    def run(self, step: object) -> None:
        match step:
            case Send():
                self.send(step)
            case End(producer_id, commit, timestamp):
                if self.log.table.is_open(producer_id, 0):
                    self.log.finish(producer_id, commit=commit, timestamp=timestamp)
                    self.wrote(producer_id)
            case Pass(ms):
                self.now_ms += ms
            case Look(among):
                self.look(among)
            case Begin():
                table, end = self.log.table, self.log.end
                state = as_restored(table)
                self.taken.append(Taken(table.draft(end), len(self.log.batches), end, state))
            case Advance(most):
                for each in self.taken:
                    each.draft.advance(most)
            case Restart():
                self.restart(step)
        self.check()

    def send(self, step: Send) -> None:
        table, producer_id = self.log.table, step.producer_id
        producer = table.find(producer_id)
        known = producer is not None and producer.window
        sequence = producer.window[-1].last_sequence + 1 if producer and known else 0
        transactional = step.transactional or table.is_open(producer_id, 0)
        header = self.log.data(
            producer_id, sequence, transactional=transactional, timestamp=step.timestamp
        )
        self.last_sent[producer_id] = header, header.base_offset
        self.wrote(producer_id)

    def wrote(self, producer_id: int) -> None:
        self.written_ms[producer_id] = self.now_ms
        self.noticed_ms.pop(producer_id, None)

    def look(self, among: frozenset[int] | None) -> None:
        table = self.log.table
        table.expire(self.now_ms - self.started_ms, KEPT_MS, among)
        for producer_id in IDS if among is None else among:
            producer = table.find(producer_id)
            noticed_ms = self.noticed_ms.setdefault(producer_id, self.now_ms)
            if producer is not None and producer.transaction_start is None:
                assert self.now_ms - noticed_ms < KEPT_MS, "it is kept for ever"

    def restart(self, step: Restart) -> None:
        """What is not finished is lost."""
        table, first = ProducerTable(), 0
        finished = [each for each in self.taken if each.draft.is_finished]
        if step.from_snapshot and finished:
            newest = finished[-1]
            table = ProducerTable.from_bytes(newest.draft.to_bytes(), newest.end)
            first = newest.batches
        tail = memoryview(self.log.bytes_from(first))
        (replay_compiled if step.compiled else replay_plain)(table, tail)
        self.log.table = table
        self.started_ms = self.now_ms
        self.noticed_ms.clear()
        self.taken = finished

    def check(self) -> None:
        table = self.log.table
        for producer_id, (header, offset) in self.last_sent.items():
            if self.now_ms - self.written_ms[producer_id] < KEPT_MS:
                verdict = judge(table.find(producer_id), header, from_zero=False)
                assert isinstance(verdict, WrittenBatch), "a repeat would be written a second time"
                assert verdict.first_offset == offset
        for each in self.taken:
            if each.draft.is_finished:
                restored = ProducerTable.from_bytes(each.draft.to_bytes(), each.end)
                assert as_restored(restored) == each.state


def as_restored(table: ProducerTable) -> object:
    """All but for how long they were silent; copied, as the table goes on."""
    producers = {
        producer_id: (
            producer.epoch,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.transaction_start,
            tuple(producer.window),
        )
        for producer_id, producer in table.producers()
    }
    return producers, table.open_transactions(), list(table.aborted)


@given(steps)
@settings(max_examples=examples(500), deadline=None)
def test_a_repeat_is_known_for_as_long_as_was_promised(history: list[object]) -> None:
    walk = Walk()
    for step in history:
        walk.run(step)


@given(st.lists(st.tuples(ids, st.integers(0, 400)), max_size=30), st.integers(1, 300))
def test_silence_is_never_overstated(writes: list[tuple[int, int]], every_ms: int) -> None:
    """With looks at any pace: gone is only who has been silent for all of the time, and is then
    gone with the second look behind it."""
    table, now_ms, next_look, offset = ProducerTable(), 0, every_ms, 0
    written: dict[int, int] = {}
    for producer_id, ms in [*writes, (0, KEPT_MS + 2 * every_ms)]:
        while next_look <= now_ms + ms:
            table.expire(next_look, KEPT_MS)
            for each, at in written.items():
                if table.find(each) is None:
                    assert next_look - at >= KEPT_MS
                else:
                    assert next_look - at < KEPT_MS + 2 * every_ms
            next_look += every_ms
        now_ms += ms
        if producer_id:
            batch = data_batch(producer_id, offset, timestamp=-1).assign(offset, 0)
            assert judge(None, batch.header, from_zero=False) is ErrorCode.NONE
            table.apply(batch.header, None)
            written[producer_id] = now_ms
            offset += 1
    assert not table.ids()
