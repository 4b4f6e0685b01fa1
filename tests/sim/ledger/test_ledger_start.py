"""How the ledger of a query begins: drivers that die at every step of it, also twice, first batches
that fail, queries that rest until brokers forget, and ledgers that somebody deletes meanwhile.

In the simulated world of `year_ledger`, one story each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from onceflow.client.codec.cluster import HangingTransaction
from onceflow.client.codec.transactions import ProducerIdentity
from onceflow.client.errors.requests import AbortableError
from onceflow.client.transactions.handoff import OpenTransaction
from onceflow.spark.errors.sink import (
    BatchFailed,
    EndUnknown,
    LedgerConflict,
    SinkError,
    SinkFenced,
)
from onceflow.spark.sink import run as sink_run
from onceflow.spark.sink.hanging_transactions import HangingTransactions
from onceflow.spark.sink.ledger import WriterEpoch
from onceflow.spark.sink.task_plan import Report
from onceflow.testing.world import run_blocking
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from tests.sim.years.ledger import NOTES, Checkpoint, Killed, Query, Run, Shape
from tests.sim.years.machine import DAY_S, rare_sweeps

T = TypeVar("T")
ROWS = 2
"""In each batch."""
STRIDE = 3
"""Where a start is gone through in some of its steps."""

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(params=[2, 1], ids=["TV2", "TV1"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Driver(Run):
    """Its tasks fail if they are told to."""

    has_bad_row = False

    def run_tasks(self, frame: Any, transaction: OpenTransaction) -> list[Report]:
        if self.has_bad_row:
            raise SinkError("a row has a bad value")
        return super().run_tasks(frame, transaction)


class Story(Query):
    """Drivers, batches and what befalls them, one after the other."""

    def tell(self, story: Callable[[Story], T]) -> T:
        self.wait(self.machine.start())
        self.wait(self.output.make_topics())
        with self._patched():
            return story(self)

    def driver(self, checkpoint: Checkpoint) -> Driver:
        return Driver(self, checkpoint, self._settings(checkpoint))

    def plan(self, checkpoint: Checkpoint, batch_id: int) -> None:
        if f"offsets/{batch_id}" not in checkpoint.files:
            self._available += ROWS
            checkpoint.plan(batch_id, self._available, self._world.clock.wall_ms())

    def write(self, run: Run, checkpoint: Checkpoint, batch_id: int) -> None:
        self.plan(checkpoint, batch_id)
        frame: Any = checkpoint.rows(batch_id)
        run.write_batch(frame, batch_id)

    def start(self, checkpoint: Checkpoint, *batches: int, has_bad_row: bool = False) -> None:
        """One life of a driver."""
        run = self.driver(checkpoint)
        run.has_bad_row = has_bad_row
        try:
            for batch_id in batches:
                self.write(run, checkpoint, batch_id)
        finally:
            run.close()

    def start_and_die(self, checkpoint: Checkpoint, batch_id: int, steps: int) -> bool:
        """Whether it died before the batch was done. Below 0: behind the commit."""
        self._steps_left, self._then = steps, self._die
        self._fatal_point = "after EndTxn" if steps < 0 else ""
        try:
            self.start(checkpoint, batch_id)
        except Killed:
            return True
        finally:
            self._steps_left, self._fatal_point = -1, ""
        return False

    def go_on_from_group(
        self, checkpoint: Checkpoint, batch_id: int, *, has_bad_row: bool = False
    ) -> None:
        """One life of a driver that takes over the ledger of others."""
        run = self.driver(checkpoint)
        run._options = replace(run._options, continue_from_group=True)
        run.has_bad_row = has_bad_row
        try:
            self.write(run, checkpoint, batch_id)
        finally:
            run.close()

    def rest(self, days: float) -> None:
        self._pass(days)

    def begin_anew(self) -> None:
        """Another checkpoint reads the same rows again."""
        self._available = 0

    def delete_ledger(self, checkpoint: Checkpoint) -> None:
        group = {"groups_names": [f"{checkpoint.name}.ledger"]}
        self.wait(self.output.caller.ask(ApiKey.DELETE_GROUPS, 2, group))

    def rows(self) -> list[int]:
        self._check()
        found: list[int] = self.wait(self.output.rows())
        return found


def tell(version: int, story: Callable[[Story], T]) -> T:
    with rare_sweeps():
        told, _ = run_blocking(
            1,
            lambda world: Story(world, Shape(version)).tell(story),
            max_virtual_seconds=400 * DAY_S,
        )
    return told


def query(number: int = 1) -> Checkpoint:
    return Checkpoint(f"query-{number}", "totals", 0)


# --- a death at every step -----------------------------------------------------------------------


def die_twice(version: int, first: int, second: int, *, delete: bool) -> tuple[bool, bool]:
    """Whether the driver died that often."""

    def story(told: Story) -> tuple[bool, bool]:
        mine = query()
        deaths = told.start_and_die(mine, 0, first), told.start_and_die(mine, 0, second)
        done = told.rows()
        if delete:
            told.delete_ledger(mine)
        try:
            told.start(mine, 0)
        except LedgerConflict:
            assert delete
            assert told.rows() == done
        else:
            assert told.rows() == [0, 1], (first, second)
        return deaths

    return tell(version, story)


def steps_of(died: Callable[[int], bool], stride: int = STRIDE) -> int:
    """Dies at the steps of a start until there are no more; how many there are."""
    step = 0
    while died(step):
        step += stride
    return step


def test_a_driver_dies_at_each_step_and_its_ledger_is_deleted_behind_the_commit(
    version: int,
) -> None:
    assert steps_of(lambda step: die_twice(version, step, -1, delete=True)[0], stride=1) > 10


def test_a_driver_dies_at_some_step_and_again_behind_its_commit(version: int) -> None:
    assert steps_of(lambda step: die_twice(version, step, -1, delete=False)[0]) > 10


@pytest.mark.parametrize("first", [9, 13])
def test_a_driver_dies_at_some_step_twice(version: int, first: int) -> None:
    assert steps_of(lambda step: die_twice(version, first, step, delete=True)[1]) > 5


def test_a_driver_dies_at_some_step_after_its_ledger_was_forgotten(version: int) -> None:
    def died(step: int) -> bool:
        def story(told: Story) -> bool:
            mine = query()
            told.start(mine, 0)
            told.rest(9)
            has_died = told.start_and_die(mine, 1, step)
            told.start_and_die(mine, 1, -1)
            told.delete_ledger(mine)
            with pytest.raises(LedgerConflict, match="had an entry"):
                told.start(mine, 1)
            assert told.rows() == [0, 1, 2, 3], step
            return has_died

        return tell(version, story)

    assert steps_of(died) > 10


# --- first batches that fail ---------------------------------------------------------------------


def test_a_first_batch_that_fails_does_not_use_up_the_name(version: int) -> None:
    def story(told: Story) -> list[int]:
        with pytest.raises(BatchFailed, match="bad value"):
            told.start(query(1), 0, has_bad_row=True)
        told.begin_anew()
        told.start(query(2), 0)
        return told.rows()

    assert tell(version, story) == [0, 1]


def test_going_on_from_the_group_fails_at_once_and_the_old_checkpoint_goes_on(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_run, "check_continues", lambda *_, **__: None)

    def story(told: Story) -> list[int]:
        old, new = query(1), Checkpoint("query-2", "totals", ROWS)
        told.start(old, 0)
        with pytest.raises(BatchFailed):
            told.go_on_from_group(new, 0, has_bad_row=True)
        with pytest.raises(LedgerConflict, match="another query"):
            told.start(query(3), 0)  # that one does not go on from anywhere
        told.start(old, 1)
        with pytest.raises(LedgerConflict, match="another query"):
            told.start(new, 0)
        return told.rows()

    assert tell(version, story) == list(range(8))


def test_first_batches_of_two_checkpoints_fail_and_the_first_one_goes_on(version: int) -> None:
    def story(told: Story) -> list[int]:
        mine = query(1)
        with pytest.raises(BatchFailed):
            told.start(mine, 0, has_bad_row=True)
        told.begin_anew()
        with pytest.raises(BatchFailed):
            told.start(query(2), 0, has_bad_row=True)
        told.start(mine, 0)  # nothing was ever committed under this name
        return told.rows()

    assert tell(version, story) == [0, 1]


def test_two_go_on_from_the_group_and_fail_and_the_first_one_tries_again(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_run, "check_continues", lambda *_, **__: None)

    def story(told: Story) -> list[int]:
        told.start(query(1), 0)
        first, second = (Checkpoint(f"query-{number}", "totals", ROWS) for number in (2, 3))
        for each in (first, second):
            told._available = ROWS
            with pytest.raises(BatchFailed):
                told.go_on_from_group(each, 0, has_bad_row=True)
        told.go_on_from_group(first, 0)
        return told.rows()

    assert tell(version, story) == [0, 1, 2, 3]


def test_the_old_checkpoint_commits_over_one_that_went_on_and_failed(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch has no rows, and so moves no offsets of the group."""
    monkeypatch.setattr(sink_run, "check_continues", lambda *_, **__: None)

    def story(told: Story) -> list[int]:
        old, new = query(1), Checkpoint("query-2", "totals", ROWS)
        told.start(old, 0)
        with pytest.raises(BatchFailed):
            told.go_on_from_group(new, 0, has_bad_row=True)
        old.plan(1, ROWS, told._world.clock.wall_ms())
        run = told.driver(old)
        run.run_tasks = lambda *_: []  # type: ignore[method-assign]
        told.write(run, old, 1)
        run.close()
        told.go_on_from_group(new, 0)
        return told.rows()

    assert tell(version, story) == [0, 1, 2, 3]


def test_an_error_that_passes_while_the_ledger_is_begun(version: int) -> None:
    def story(told: Story) -> list[int]:
        mine = query()
        run = told.driver(mine)
        client: Any = run._writer._client
        honest, failures = client.commit_offsets, [AbortableError("no answer in time")]

        def commit_offsets(*given: Any) -> None:
            if failures:
                raise failures.pop()
            honest(*given)

        client.commit_offsets = commit_offsets
        told.write(run, mine, 0)
        run.close()
        return told.rows()

    assert tell(version, story) == [0, 1]


# --- brokers that do not say how long they keep offsets ------------------------------------------


@pytest.mark.parametrize("rest_days", [0.0, 0.02, 0.3, 9.0])
@pytest.mark.parametrize("pause_days", [0.0, 0.03, 0.5])
def test_a_ledger_is_deleted_that_may_have_been_forgotten(
    version: int, rest_days: float, pause_days: float
) -> None:
    """However long the query rested before its last batch, and however soon somebody starts it
    again behind its commit."""

    def story(told: Story) -> list[int]:
        told.told_offsets_kept_ms = 0
        mine = query()
        told.start(mine, 0)
        told.rest(rest_days)
        assert told.start_and_die(mine, 1, -1)
        told.delete_ledger(mine)
        told.rest(pause_days)
        with pytest.raises(LedgerConflict, match="had an entry"):
            told.start(mine, 1)
        return told.rows()

    assert tell(version, story) == [0, 1, 2, 3]


def test_a_query_that_rested_goes_on_without_the_right_to_see_how_long_offsets_are_kept(
    version: int,
) -> None:
    """Also where its ledger is gone after some hours: brokers may keep offsets no longer."""

    def story(told: Story) -> list[int]:
        told.told_offsets_kept_ms = 0
        mine = query()
        told.start(mine, 0)
        told.rest(9)
        told.start(mine, 1)
        told.rest(0.1)
        told.delete_ledger(mine)
        told.start(mine, 2)
        return told.rows()

    assert tell(version, story) == list(range(6))


def test_a_driver_dies_at_some_step_of_renewing_its_ledger(version: int) -> None:
    def died(step: int) -> bool:
        def story(told: Story) -> bool:
            told.told_offsets_kept_ms = 0
            mine = query()
            told.start(mine, 0)
            told.rest(0.1)
            has_died = told.start_and_die(mine, 1, step)
            told.start_and_die(mine, 1, -1)
            told.delete_ledger(mine)
            with pytest.raises(LedgerConflict, match="had an entry"):
                told.start(mine, 1)
            assert told.rows() == [0, 1, 2, 3], step
            return has_died

        return tell(version, story)

    assert steps_of(died) > 10


# --- what the checkpoint says ---------------------------------------------------------------------


def test_a_query_of_an_earlier_release_rests_and_goes_on(version: int) -> None:
    """Its ledger has an entry, its checkpoint no note of it."""

    def story(told: Story) -> list[int]:
        mine = query()
        told.start(mine, 0, 1)
        mine.forget_notes()
        told.start(mine, 2)
        told.rest(6)
        told.plan(mine, 3)  # and the driver dies
        told.rest(2)
        told.start(mine, 3)
        return told.rows()

    assert tell(version, story) == list(range(8))


@pytest.mark.parametrize("batches", [1, 2])
def test_the_ledger_of_an_earlier_release_is_deleted_behind_a_commit(
    version: int, batches: int
) -> None:
    def story(told: Story) -> list[int]:
        mine = query()
        told.start(mine, *range(batches))
        mine.forget_notes()
        told.start_and_die(mine, batches, -1)
        told.delete_ledger(mine)
        with pytest.raises(LedgerConflict, match="had an entry"):
            told.start(mine, batches)
        return told.rows()

    assert tell(version, story) == list(range((batches + 1) * ROWS))


def test_two_drivers_begin_one_ledger(version: int) -> None:
    """The second one comes while the first is about to write its note, which is faster then."""

    def story(told: Story) -> list[int]:
        mine = query()
        first = told.driver(mine)
        honest, seconds = mine.create, [told.driver(mine)]

        def create(name: str, text: str) -> None:
            if name.startswith(NOTES) and seconds:
                second = seconds.pop()
                told.write(second, mine, 0)
                second.close()
            honest(name, text)

        mine.create = create  # type: ignore[method-assign]
        with pytest.raises(SinkFenced):
            told.write(first, mine, 0)
        first.close()
        told.start(mine, 0, 1)
        return told.rows()

    assert tell(version, story) == [0, 1, 2, 3]


def test_a_ledger_of_an_earlier_release_is_forgotten_begun_anew_and_deleted(version: int) -> None:
    """The note of the entry that was forgotten does not speak for the one that came after it."""

    def story(told: Story) -> list[int]:
        mine = query()
        told.start(mine, 0, 1)
        mine.forget_notes()
        told.rest(6)
        with pytest.raises(BatchFailed):
            told.start(mine, 2, has_bad_row=True)
        told.rest(2)
        assert told.start_and_die(mine, 2, -1)
        told.delete_ledger(mine)
        with pytest.raises(LedgerConflict, match="had an entry"):
            told.start(mine, 2)
        return told.rows()

    assert tell(version, story) == list(range(6))


@pytest.mark.parametrize("change", ["create", "delete"])
def test_a_driver_that_slept_does_not_take_away_the_note_of_the_next(
    version: int, change: str
) -> None:
    """It wakes up when that one has committed, changes one file more, and is killed; then somebody
    deletes the ledger."""

    def story(told: Story) -> list[int]:
        mine = query()
        told.start(mine, 0)
        told.rest(9)  # the ledger is forgotten: batch 1 begins it anew
        first = told.driver(mine)
        files: Any = mine
        honest = {each: getattr(mine, each) for each in ("create", "delete")}
        has_slept: list[bool] = []

        def changed(which: str, *given: str) -> None:
            if has_slept:
                raise Killed
            if which == change and given[0].startswith(NOTES):
                files.create, files.delete = honest["create"], honest["delete"]
                second = told.driver(mine)
                told.write(second, mine, 1)
                second.close()
                patch()
                has_slept.append(True)
            honest[which](*given)

        def patch() -> None:
            for each in honest:
                setattr(files, each, partial(changed, each))

        patch()
        with pytest.raises((Killed, SinkFenced)):
            told.write(first, mine, 1)
        first.close()
        assert has_slept
        files.create, files.delete = honest["create"], honest["delete"]
        told.delete_ledger(mine)
        with pytest.raises(LedgerConflict, match="had an entry"):
            told.start(mine, 1)
        return told.rows()

    assert tell(version, story) == [0, 1, 2, 3]


# --- markers that are missing ---------------------------------------------------------------------


class MissingMarker:
    """Of one batch in the output, as a broker leaves it that has ended a transaction without it."""

    def __init__(self, writer: WriterEpoch, patch: pytest.MonkeyPatch) -> None:
        self._left = HangingTransaction(TopicPartition("out", 0), *writer, 0)
        self.ends: list[bool] = []
        """Whether it was a commit or an abort that was written for it."""
        patch.setattr(HangingTransactions, "_find", lambda _, mine, __: self._found(mine))
        patch.setattr(
            HangingTransactions, "_end", lambda _, __, *, commit: self.ends.append(commit)
        )

    def _found(self, mine: ProducerIdentity) -> tuple[HangingTransaction, ...]:
        is_older = self._left.producer_epoch < mine.producer_epoch
        is_open = self._left.producer_id == mine.producer_id and is_older and not self.ends
        return (self._left,) if is_open else ()


@pytest.mark.parametrize("is_known", [True, False], ids=["coordinator knows", "nobody knows"])
def test_an_empty_ledger_does_not_abort_a_batch_that_was_committed(
    version: int, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(told: Story) -> list[bool]:
        mine = query()
        run = told.driver(mine)
        told.write(run, mine, 0)
        found = run._writer._entry
        run.close()
        assert found is not None
        missing = MissingMarker(found.writer, monkeypatch)
        told.delete_ledger(mine)
        if not is_known:
            monkeypatch.setattr(HangingTransactions, "remember", lambda _: None)
        with pytest.raises(LedgerConflict if is_known else EndUnknown):
            told.start(mine, 1)
        return missing.ends

    assert tell(version, story) == ([True] if is_known else [])


def test_a_first_batch_that_failed_is_aborted_where_its_marker_is_missing(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(told: Story) -> tuple[list[bool], list[int]]:
        mine = query()
        run = told.driver(mine)
        run.has_bad_row = True
        with pytest.raises(BatchFailed):
            told.write(run, mine, 0)
        opened = run._writer._opened
        run.close()
        assert opened is not None
        writer = WriterEpoch(opened.producer_id, opened.producer_epoch)
        missing = MissingMarker(writer, monkeypatch)
        told.start(mine, 0)
        return missing.ends, told.rows()

    assert tell(version, story) == ([False], [0, 1])


# --- topics that rows name ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("has_bad_row", [False, True])
def test_rows_name_topics_one_after_the_other(version: int, count: int, has_bad_row: bool) -> None:
    """In the older protocol each of them ends a try, and no try is used up by it; others are."""

    def story(told: Story) -> tuple[list[int], int]:
        mine, tries = query(), []
        names = [f"named-{number}" for number in range(count)]
        told.wait(told.output.make_topics(*names))
        run = told.driver(mine)
        honest = run.run_tasks

        def run_tasks(frame: Any, transaction: OpenTransaction) -> list[Report]:
            tries.append(transaction)
            for name in names:
                run._writer.topics.ensure([name])
            return honest(frame, transaction)

        run.run_tasks = run_tasks  # type: ignore[method-assign]
        run.has_bad_row = has_bad_row
        try:
            told.write(run, mine, 0)
        except BatchFailed:
            assert has_bad_row
        run.close()
        return told.rows(), len(tries)

    more = count if version == 1 else 0
    assert tell(version, story) == (([], 3 + more) if has_bad_row else ([0, 1], 1 + more))
