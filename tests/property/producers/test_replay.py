"""The compiled way through a log finds the same table as the plain one, whatever is in the log."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.producers.replaying import replay_compiled, replay_plain
from onceflow.producers.table import ProducerTable
from tests.doses import examples
from tests.property.producers.wild_batches import CONTROLS, KINDS, Shape, batch, wild

USUAL = ["transactional", "transactional", "commit", "commit", "commit", "abort", "plain"]


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
