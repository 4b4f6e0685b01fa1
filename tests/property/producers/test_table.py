"""The producer table against a model that keeps everything and looks it all up anew."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.producers.replaying import replay_plain
from onceflow.producers.state import WrittenBatch, judge, judge_marker
from onceflow.producers.table import ProducerTable
from onceflow.records.batch import BatchHeader
from onceflow.wire.error_codes import ErrorCode
from tests.doses import examples
from tests.unit.producers.handmade_log import Log, data_batch

WRAP = 2**31


class Event(NamedTuple):
    """A batch in the log, as the model knows it."""

    producer_id: int
    epoch: int
    sequence: int
    first: int
    last: int
    kind: str  # plain, transactional, commit, abort


class Model:
    """The history of a partition as one list, and naive answers from it."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def of(self, producer_id: int) -> list[Event]:
        return [event for event in self.events if event.producer_id == producer_id]

    def transactions(self) -> list[tuple[int, int, int | None, bool]]:
        """Producer id, first offset, marker (None: open), whether aborted."""
        found: list[tuple[int, int, int | None, bool]] = []
        for producer_id in {event.producer_id for event in self.events}:
            start: int | None = None
            for event in self.of(producer_id):
                if event.kind == "transactional" and start is None:
                    start = event.first
                elif event.kind in ("commit", "abort") and start is not None:
                    found.append((producer_id, start, event.first, event.kind == "abort"))
                    start = None
            if start is not None:
                found.append((producer_id, start, None, False))
        return found

    def stable(self, high_watermark: int, log_start: int) -> int:
        unstable = [
            first
            for _, first, marker, _ in self.transactions()
            if marker is None or marker >= high_watermark
        ]
        return min([high_watermark, *(max(first, log_start) for first in unstable)])

    def aborted(self, start: int, end: int, log_start: int) -> list[tuple[int, int]]:
        ended = sorted(
            (marker, producer_id, first)
            for producer_id, first, marker, aborted in self.transactions()
            if aborted and marker is not None and marker >= log_start
        )
        return [
            (producer_id, first)
            for marker, producer_id, first in ended
            if marker >= start and first < end
        ]

    def verdict(self, header: BatchHeader) -> tuple[int, int] | ErrorCode:
        """First and last offset of the batch that this one repeats, or the code."""
        history = self.of(header.producer_id)
        if not history:
            return ErrorCode.NONE
        epoch = history[-1].epoch
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        sent = []
        if header.producer_epoch == epoch:
            sent = [each for each in history if each.epoch == epoch and each.sequence >= 0][-5:]
        for event in sent:
            same_size = event.last - event.first == header.last_offset_delta
            if event.sequence == header.base_sequence and same_size:
                return event.first, event.last
        expected = 0
        if sent:
            expected = (sent[-1].sequence + sent[-1].last - sent[-1].first + 1) % WRAP
        if header.base_sequence != expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        is_open = any(
            producer_id == header.producer_id and marker is None
            for producer_id, _, marker, _ in self.transactions()
        )
        if is_open and not header.is_transactional:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE


class Send(NamedTuple):
    producer_id: int
    epoch_step: int
    sequence_step: int
    records: int
    transactional: bool


class End(NamedTuple):
    producer_id: int
    epoch_step: int
    commit: bool


class Repeat(NamedTuple):
    """Of the batch sent that many times ago."""

    back: int


class Durable(NamedTuple):
    """So much of the rest becomes durable, in tenths."""

    tenths: int


class MoveStart(NamedTuple):
    """So much of what is durable goes, in tenths."""

    tenths: int


ids = st.integers(1, 4)
mostly_in_order = st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1])
operations = st.one_of(
    st.builds(
        Send,
        ids,
        st.sampled_from([0, 0, 0, 0, 1, -1]),
        mostly_in_order,
        st.integers(1, 4),
        st.booleans(),
    ),
    st.builds(End, ids, st.sampled_from([0, 1, 1, -1]), st.booleans()),
    st.builds(Repeat, st.integers(1, 8)),
    st.builds(Durable, st.integers(0, 10)),
    st.builds(MoveStart, st.integers(0, 3)),
)
histories = st.lists(operations, max_size=40)


class Walk:
    """Runs operations on a table as a partition would, and on the model beside it."""

    def __init__(self) -> None:
        self.log = Log()
        self.model = Model()
        self.sent: list[BatchHeader] = []
        self.high_watermark = 0
        self.log_start = 0
        self.stable = 0

    def run(self, operation: object) -> None:
        match operation:
            case Send():
                self.send(self.next_batch(operation))
            case Repeat(back) if len(self.sent) >= back:
                self.send(self.sent[-back])
            case End():
                self.end(operation)
            case Durable(tenths):
                self.high_watermark += (self.log.end - self.high_watermark) * tenths // 10
            case MoveStart(tenths):
                self.log_start += (self.high_watermark - self.log_start) * tenths // 10
                self.log.table.start_moved(self.log_start)
        self.check()

    def next_batch(self, operation: Send) -> BatchHeader:
        """Mostly the one that is due; a new producer starts shortly before the wrap."""
        producer = self.log.table.find(operation.producer_id)
        epoch, sequence = 0, WRAP - 6
        if producer is not None:
            epoch = max(0, producer.epoch + operation.epoch_step)
            is_next = producer.window and operation.epoch_step == 0
            sequence = producer.window[-1].last_sequence + 1 if is_next else 0
        return data_batch(
            operation.producer_id,
            (sequence + operation.sequence_step) % WRAP,
            operation.records,
            epoch=epoch,
            transactional=operation.transactional,
        ).header

    def send(self, header: BatchHeader) -> None:
        producer = self.log.table.find(header.producer_id)
        verdict = judge(producer, header, from_zero=False)
        expected = self.model.verdict(header)
        if isinstance(verdict, WrittenBatch):
            assert (verdict.first_offset, verdict.last_offset) == expected
            return
        assert verdict is expected
        self.sent.append(header)
        if verdict is not ErrorCode.NONE:
            return
        stored = self.log.data(
            header.producer_id,
            header.base_sequence,
            header.record_count,
            epoch=header.producer_epoch,
            transactional=header.is_transactional,
        )
        self.remember(stored, "transactional" if header.is_transactional else "plain")

    def end(self, operation: End) -> None:
        producer = self.log.table.find(operation.producer_id)
        epoch = max(0, (producer.epoch if producer else 0) + operation.epoch_step)
        if judge_marker(producer, epoch, 0, transaction_version=1) is not ErrorCode.NONE:
            return
        self.log.finish(operation.producer_id, commit=operation.commit, epoch=epoch)
        self.remember(self.log.batches[-1].header, "commit" if operation.commit else "abort")

    def remember(self, header: BatchHeader, kind: str) -> None:
        self.model.events.append(
            Event(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_offset,
                header.last_offset,
                kind,
            )
        )

    def check(self) -> None:
        table = self.log.table
        stable = table.last_stable_offset(self.high_watermark)
        assert stable == self.model.stable(self.high_watermark, self.log_start)
        assert stable >= self.stable
        self.stable = stable
        for start in range(self.log_start, self.log.end, 3):
            for end in (start + 1, self.log.end):
                assert list(table.aborted.between(start, end)) == self.model.aborted(
                    start, end, self.log_start
                )


@given(histories)
@settings(max_examples=examples(150))
def test_the_table_answers_as_the_whole_history_would(history: list[object]) -> None:
    walk = Walk()
    for operation in history:
        walk.run(operation)


def busy(rand: Random) -> list[object]:
    """Long and mostly in order: transactions overlap, and what is durable lags behind."""
    history: list[object] = []
    for _ in range(rand.randint(20, 60)):
        producer_id = rand.randint(1, 3)
        history.append(
            rand.choice(
                [
                    Send(producer_id, 0, 0, rand.randint(1, 3), True),
                    Send(producer_id, 0, 0, rand.randint(1, 3), True),
                    Send(producer_id, rand.choice([0, 0, 1, -1]), rand.choice([0, 1]), 1, False),
                    End(producer_id, rand.randint(0, 1), rand.random() < 0.5),
                    Repeat(rand.randint(1, 8)),
                    Durable(rand.randint(0, 6)),
                    Durable(rand.randint(0, 6)),
                    MoveStart(rand.choice([0, 0, 0, 2])),
                ]
            )
        )
    return history


@pytest.mark.parametrize("seed", range(4))
def test_a_busy_table_answers_as_the_whole_history_would(seed: int) -> None:
    rand = Random(seed)
    for _ in range(25):
        walk = Walk()
        for operation in busy(rand):
            walk.run(operation)


@given(histories, st.data())
@settings(max_examples=examples(150))
def test_a_snapshot_anywhere_and_the_rest_of_the_log_are_the_whole(
    history: list[object], data: st.DataObject
) -> None:
    walk = Walk()
    snapshots: list[tuple[int, bytes]] = []  # at each batch boundary: how many batches, the bytes
    for operation in history:
        if not isinstance(operation, MoveStart):
            snapshots.append((len(walk.log.batches), walk.log.table.to_bytes(walk.log.end)))
            ends = walk.log.end
            walk.run(operation)
            assert walk.log.end >= ends
    log = walk.log
    snapshots.append((len(log.batches), log.table.to_bytes(log.end)))
    batches, snapshot = data.draw(st.sampled_from(snapshots))
    offset = log.batches[batches].header.base_offset if batches < len(log.batches) else log.end
    table = ProducerTable.from_bytes(snapshot, offset)
    tail = log.bytes_from(batches)
    assert replay_plain(table, memoryview(tail)) == len(tail)
    assert table.to_bytes(log.end) == log.table.to_bytes(log.end)
    assert table.open_transactions() == log.table.open_transactions()
    assert table.last_stable_offset(log.end) == log.table.last_stable_offset(log.end)
    for base in range(0, log.end + 1, 5):
        assert table.aborted.encode(base, log.end) == log.table.aborted.encode(base, log.end)
