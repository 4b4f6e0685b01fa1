"""Some years of a broker, of sessions that sleep and of the Spark sink's ledger, in a minute.

And the proof that these checks can fail: each of a list of bugs, planted in the broker, the client
or the sink, is found. `make year` lives many more years.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from onceflow.records.batch import StoredBatch
from onceflow.records.plain import PlainRecord, write_records
from onceflow.testing.world import World, run
from tests.sim.txn.history import Place, PromiseBroken
from tests.sim.years import broker as year, ledger as year_ledger, sessions as year_sessions
from tests.sim.years.bugs import (
    BUGS,
    Bug,
    Plant,
    batches_do_not_age,
    forgotten_batches_run,
    forgotten_offsets_unnoticed,
)
from tests.sim.years.judge import Judge, Seen
from tests.sim.years.machine import Machine
from tests.sim.years.model import Fate, Log, Model, Topic, TopicRules

WORLDS_TO_TRY = 4
"""A change elsewhere moves what is drawn: then a bug shows in another world."""

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize(
    ("seed", "durability", "days"),
    [
        (2, "fsync", 365),
        (7, "os", 70),
        pytest.param(2, "fsync", 200, marks=pytest.mark.long),
        pytest.param(5, "os", 200, marks=pytest.mark.long),
    ],
)
def test_at_the_end_of_every_day_all_is_there_that_must_be(
    seed: int, durability: str, days: int
) -> None:
    told, _ = year.live(seed, year.Shape(durability, days=days))
    # Else it was not much of a year.
    for what in ("clock set ahead", "clock set back", "holidays", "killed", "power cut", "stopped"):
        assert told.did[what] > 0, what


def test_the_same_seed_gives_the_same_days() -> None:
    shape = year.Shape("fsync", days=12)
    assert year.live(3, shape) == year.live(3, shape)


def is_found(plant: Plant, verdict: str, live: Callable[[], object]) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        try:
            live()
        except PromiseBroken as error:
            said = str(error)
        else:
            return False
    assert re.search(verdict, said), said
    return True


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS.keys())
def test_a_bug_that_days_bring_to_light_is_found(bug: Bug) -> None:
    shape = year.Shape(bug.durability, bug.days)
    seeds = range(bug.seed, bug.seed + WORLDS_TO_TRY)
    assert any(
        is_found(bug.plant, bug.verdict, lambda seed=seed: year.live(seed, shape))  # type: ignore[misc]
        for seed in seeds
    )


# --- what the judge says of records that are gone ------------------------------------------------

TABLE = Place("table", 0)
OLD_VALUE, TOMBSTONE, END = 0, 250, 300


def batch_of(offset: int, value: bytes | None) -> StoredBatch:
    return write_records([PlainRecord(b"key", value)], 0).assign(offset, 0)


def seen(*batches: StoredBatch, since: int) -> Seen:
    return Seen(0, since, END, END, list(batches))


async def judge_of_a_tombstone(world: World) -> Judge:
    """One who knows of a value and, much later, a tombstone of its key."""
    machine = Machine(world, "os")
    judge = Judge(machine, Model(machine.clocks), "judge")
    rules = TopicRules(compacts=True, deletes=False)
    judge.model.topic_made(Topic(TABLE.topic, 1, {}, rules))
    for offset, value in ((OLD_VALUE, b"old"), (TOMBSTONE, None)):
        judge.model.appended(TABLE, offset, [(b"key", value)], 0, Fate.COMMITTED)
    return judge


def judged(judge_it: Callable[[Judge, Log], None]) -> Log:
    """The model's log after that."""

    async def main(world: World) -> Log:
        judge = await judge_of_a_tombstone(world)
        judge_it(judge, judge.model.logs[TABLE])
        return judge.model.logs[TABLE]

    return run(1, main)[0]


def test_a_tombstone_that_is_gone_still_says_why_an_older_record_is() -> None:
    def ask(judge: Judge, _: Log) -> None:
        judge._judge_log(TABLE, seen(since=200))  # as on most days, only the end
        judge._judge_log(TABLE, seen(since=0))

    assert judged(ask).records == {}


def test_a_tombstone_that_went_before_what_it_displaces_is_found_on_a_later_day() -> None:
    def ask(judge: Judge, _: Log) -> None:
        judge._judge_log(TABLE, seen(since=200))
        judge._judge_log(TABLE, seen(batch_of(OLD_VALUE, b"old"), since=0))

    with pytest.raises(PromiseBroken, match="is back"):
        judged(ask)


@pytest.mark.parametrize(("end", "is_lost"), [(END, False), (TOMBSTONE, True)])
def test_a_power_cut_takes_the_end_of_a_log_and_nothing_else(end: int, is_lost: bool) -> None:
    """Where the log goes on behind it, a tombstone went by compaction, and so did what it
    displaced; a tombstone that was lost has displaced nothing."""

    def ask(judge: Judge, log: Log) -> None:
        sure_until = judge.model.clocks.now()
        log.records[OLD_VALUE].told_at = sure_until - 1
        left = Seen(0, 0, end, end)
        judge._take_records(log, left, sure_until)
        judge._judge_log(TABLE, left)

    if is_lost:
        with pytest.raises(PromiseBroken, match="is gone"):
            judged(ask)
    else:
        assert judged(ask).records == {}


# --- sessions and the ledger ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "shape"),
    [
        (4, year_sessions.Shape("none", "fsync", 8)),
        (3, year_sessions.Shape("earliest", "os", 8)),
        (6, year_sessions.Shape("earliest", "fsync", 8)),
    ],
)
def test_a_session_that_slept_goes_on_exactly_once_or_says_that_it_cannot(
    seed: int, shape: year_sessions.Shape
) -> None:
    told, _ = year_sessions.live(seed, shape)
    assert told.records > 20


def test_a_session_that_takes_a_forgotten_group_for_a_new_one_is_found() -> None:
    shape = year_sessions.Shape("earliest", "fsync", 5)
    assert any(
        is_found(
            forgotten_offsets_unnoticed,
            "out-0 has",
            lambda seed=seed: year_sessions.live(seed, shape),  # type: ignore[misc]
        )
        for seed in (11, *range(20, 26))
    )


@pytest.mark.parametrize(
    ("seed", "shape"),
    [
        (2, year_ledger.Shape(2)),
        (3, year_ledger.Shape(1)),
        (4, year_ledger.Shape(2, doubled=True)),
        (5, year_ledger.Shape(1, doubled=True)),
    ],
)
def test_the_ledger_has_each_row_once_or_refuses_after_weeks(
    seed: int, shape: year_ledger.Shape
) -> None:
    told, _ = year_ledger.live(seed, shape)
    assert told.rows > 20


@pytest.mark.parametrize("version", [1, 2])
def test_a_query_that_has_a_batch_now_and_then_goes_on(version: int) -> None:
    """Its transactional id and its ledger are forgotten each time."""
    assert year_ledger.idle(version, 4) == list(range(8))


@pytest.mark.parametrize(
    ("plant", "doubled"), [(forgotten_batches_run, False), (batches_do_not_age, True)]
)
def test_a_ledger_that_does_not_ask_for_the_age_of_a_batch_is_found(
    plant: Plant, doubled: bool
) -> None:
    shape = year_ledger.Shape(2, runs=16, doubled=doubled)
    assert any(
        is_found(
            plant,
            "the output has",
            lambda seed=seed: year_ledger.live(seed, shape),  # type: ignore[misc]
        )
        for seed in range(40, 60)
    )
