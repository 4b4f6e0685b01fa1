"""The compiled way through a log finds the same table as the plain one, whatever is in the log."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.producers.replaying import replay_compiled, replay_plain
from onceflow.producers.table import ProducerTable
from onceflow.records.batch import CONTROL_BIT, HEADER_SIZE, TRANSACTIONAL_BIT, NewBatch, seal
from onceflow.records.control import marker
from tests.doses import examples
from tests.unit.producers.handmade_log import data_batch


class Shape(NamedTuple):
    """One batch of a log; nothing says that it follows from those before it."""

    producer_id: int
    epoch: int
    sequence: int
    records: int
    kind: str


KINDS = [
    "plain",
    "transactional",
    "transactional",
    "commit",
    "commit",
    "abort",
    "emptied",
    "emptied transactional",
    "emptied marker",
    "long commit",
    "long abort",
    "unknown control",
]


def control(shape: Shape, control_type: int) -> NewBatch:
    """A control record in a way that is allowed but not the usual one: its value is longer."""
    record = (
        bytes((36, 0, 0, 0, 8))
        + bytes((0, 0, 0, control_type))
        + bytes((16, 0, 1, 0, 0, 0, shape.records, 0, 0, 0))
    )
    return seal(
        bytearray(HEADER_SIZE) + record,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=shape.records,
        max_timestamp=shape.records,
        producer_id=shape.producer_id,
        producer_epoch=shape.epoch,
        base_sequence=-1,
        record_count=1,
    )


def batch(shape: Shape) -> NewBatch:
    producer_id, epoch, sequence, records, kind = shape
    if kind in ("commit", "abort"):
        return marker(
            producer_id,
            epoch,
            commit=kind == "commit",
            coordinator_epoch=records,
            timestamp_ms=sequence,
        )
    special = {"long abort": 0, "long commit": 1, "unknown control": 5}
    if kind in special:
        return control(shape, special[kind])
    return data_batch(
        producer_id,
        sequence,
        records,
        epoch=epoch,
        timestamp=records * 10,
        transactional="transactional" in kind or "marker" in kind,
        emptied="emptied" in kind,
        control="marker" in kind,
    )


USUAL = ["transactional", "transactional", "commit", "commit", "commit", "abort", "plain"]
CONTROLS = [
    "transactional",
    "commit",
    "abort",
    "long commit",
    "long abort",
    "emptied marker",
    "emptied transactional",
    "unknown control",
]


def wild(rand: Random, kinds: list[str]) -> list[Shape]:
    """Epochs that only grow with markers, or that go up and down as they never should."""
    producers = rand.choice([[1], [1, 2], [1, 2, 3], [1, 2, 3, -1, 2**63 - 1]])
    epochs = rand.choice([[0], [0, 1], [0, 0, 0, 1, 2], None])
    grown = dict.fromkeys(producers, 0)
    log: list[Shape] = []
    for number in range(rand.randint(1, rand.choice([6, 12, 25, 60]))):
        producer_id, kind = rand.choice(producers), rand.choice(kinds)
        grown[producer_id] += kind in ("commit", "abort") and rand.random() < 0.6
        epoch = grown[producer_id] if epochs is None else rand.choice(epochs)
        sequence = -1 if rand.random() < 0.05 else number
        log.append(Shape(producer_id, epoch, sequence, rand.randint(1, 3), kind))
    return log


class Turn(NamedTuple):
    """A transaction as brokers write it: batches, then a marker that may carry the next epoch."""

    producer_id: int
    batches: int
    commit: bool
    bump: int
    plain_between: int


turns = st.lists(
    st.builds(
        Turn,
        st.integers(1, 3),
        st.integers(0, 8),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([0, 1]),
        st.integers(0, 7),
    ),
    max_size=20,
)


@st.composite
def tame(draw: st.DrawFn) -> list[Shape]:
    """Transactions of three producers that overlap, with a plain producer in between."""
    epochs = {1: 0, 2: 0, 3: 0}
    waiting: dict[int, Shape] = {}
    log: list[Shape] = []
    for turn in draw(turns):
        producer_id = turn.producer_id
        if producer_id in waiting:
            log.append(waiting.pop(producer_id))
            epochs[producer_id] = log[-1].epoch
        epoch = epochs[producer_id]
        log += [
            Shape(producer_id, epoch, each, 1 + each % 2, "transactional")
            for each in range(turn.batches)
        ]
        log += [Shape(9, 0, len(log) + each, 1, "plain") for each in range(turn.plain_between)]
        kind = "commit" if turn.commit else "abort"
        waiting[producer_id] = Shape(producer_id, epoch + turn.bump, 77, len(log), kind)
    return log


def stored(log: list[Shape]) -> list[bytes]:
    end, batches = 0, []
    for shape in log:
        placed = batch(shape).assign(end, 0)
        batches.append(bytes(placed.buffer))
        end = placed.header.next_offset
    return batches


@pytest.mark.parametrize("kinds", [KINDS, USUAL, CONTROLS], ids=["all", "usual", "controls"])
@pytest.mark.parametrize("seed", range(3))
def test_both_ways_give_the_same_table_whatever_the_log(kinds: list[str], seed: int) -> None:
    """Seeded rather than searched for: what matters are long logs of few producers, by the
    hundred."""
    rand = Random(seed)
    for _ in range(300):
        log = wild(rand, kinds)
        compare(log, rand.choice([0, 0, rand.randint(0, len(log))]))


@given(tame(), st.integers(0, 60))
@settings(max_examples=examples(400), deadline=None)
def test_both_ways_give_the_same_table_of_transactions(log: list[Shape], before: int) -> None:
    compare(log, before)


def compare(log: list[Shape], before: int) -> None:
    """The first `before` batches are in the table already."""
    batches = stored(log)
    tables = []
    for way in (replay_plain, replay_compiled):
        table = ProducerTable()
        replay_plain(table, memoryview(b"".join(batches[:before])))
        tail = b"".join(batches[before:])
        assert way(table, memoryview(tail)) == len(tail)
        tables.append(table)
    plain, compiled = tables
    assert dict(compiled.producers()) == dict(plain.producers())
    assert compiled.open_transactions() == plain.open_transactions()
    assert list(compiled.aborted) == list(plain.aborted)
    assert compiled.first_unstable_offset(0) == plain.first_unstable_offset(0)
    assert compiled.to_bytes(0) == plain.to_bytes(0)
