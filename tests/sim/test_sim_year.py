"""Some years of a broker, of sessions that sleep and of the Spark sink's ledger, in a minute.

And the proof that these checks can fail: each of a list of bugs, planted in the broker, the client
or the sink, is found. `make year` lives many more years.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.sim import year, year_ledger, year_sessions
from tests.sim.txn_history import PromiseBroken
from tests.sim.year_bugs import (
    BUGS,
    Bug,
    Plant,
    batches_do_not_age,
    forgotten_batches_run,
    forgotten_offsets_unnoticed,
)

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
