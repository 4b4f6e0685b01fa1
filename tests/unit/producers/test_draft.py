"""A snapshot that is made in slices is that of the moment in which it was begun."""

from __future__ import annotations

import pytest

from onceflow.errors import InvariantViolated
from onceflow.producers.draft import SLICE
from onceflow.producers.table import ProducerTable
from tests.unit.producers.handmade_log import PRODUCER, Log

MANY = 3 * SLICE + 7


def crowded(count: int = MANY) -> Log:
    log = Log()
    for producer_id in range(count):
        log.data(producer_id, 0, 2)
    return log


def state(table: ProducerTable) -> object:
    return dict(table.producers()), table.open_transactions(), list(table.aborted)


def restored(data: bytes, offset: int) -> object:
    return state(ProducerTable.from_bytes(data, offset))


def test_a_draft_is_finished_slice_by_slice() -> None:
    log = crowded()
    whole = log.table.to_bytes(log.end)
    draft = log.table.draft(log.end)
    turns = 0
    while not draft.is_finished:
        with pytest.raises(InvariantViolated, match="a-snapshot-is-whole"):
            draft.to_bytes()
        draft.advance()
        turns += 1
    assert turns == 4
    assert draft.to_bytes() == whole
    draft.advance()
    draft.finish()
    draft.cancel()
    assert draft.to_bytes() == whole


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4])
def test_what_happens_meanwhile_is_not_in_it(turns: int) -> None:
    log = crowded()
    log.begin(1, 2)
    log.begin(MANY - 2, 2)
    log.abort(MANY - 2)
    log.table.expire(0, 1000)
    end, whole = log.end, log.table.to_bytes(log.end)
    draft = log.table.draft(end)
    for _ in range(turns):
        draft.advance()
    for producer_id in (0, 5, SLICE, MANY - 1):
        log.data(producer_id, 2)
        log.data(producer_id, 0, epoch=1)
    log.data(MANY + 5, 0)  # one that was not there
    log.abort(1)
    log.commit(3, epoch=7, coordinator_epoch=2)
    assert log.table.expire(5000, 1000, [2, 2 * SLICE, MANY - 3]) == 3
    log.data(2, 9)  # forgotten, and here again
    draft.finish()
    assert restored(draft.to_bytes(), end) == restored(whole, end)
    assert restored(log.table.to_bytes(log.end), log.end) == state(log.table)


def test_two_drafts_at_once_are_each_of_their_own_moment() -> None:
    log = crowded()
    wholes, drafts, ends = [], [], []
    for number in range(3):
        log.data(PRODUCER, 2 + number)
        log.data(MANY - 1 - number, 2)
        log.data(MANY + number, 0)
        wholes.append(log.table.to_bytes(log.end))
        drafts.append(log.table.draft(log.end))
        ends.append(log.end)
        drafts[0].advance()
    drafts[2].advance()  # out of turn
    log.data(MANY // 2, 2)
    drafts[1].finish()
    log.data(MANY // 2 + 1, 2)
    for draft, whole, end in zip(drafts, wholes, ends, strict=True):
        draft.finish()
        assert restored(draft.to_bytes(), end) == restored(whole, end)


def test_a_draft_that_nobody_wants_costs_nothing_more() -> None:
    log = crowded()
    first, second = log.table.draft(log.end), log.table.draft(log.end)
    first.advance()
    first.cancel()
    log.data(PRODUCER, 2)
    assert log.table._drafts == [second]
    second.cancel()
    log.data(PRODUCER, 3)
    assert log.table._drafts == []
    assert restored(log.table.to_bytes(log.end), log.end) == state(log.table)


def test_aborted_transactions_are_those_of_the_moment_too() -> None:
    log = crowded()
    log.begin(PRODUCER, 2)
    log.abort(PRODUCER)
    draft, end, before = log.table.draft(log.end), log.end, list(log.table.aborted)
    log.begin(PRODUCER, 3)
    log.abort(PRODUCER)
    log.table.start_moved(log.end)
    draft.finish()
    assert list(ProducerTable.from_bytes(draft.to_bytes(), end).aborted) == before
