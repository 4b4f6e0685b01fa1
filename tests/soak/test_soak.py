"""A minute of mixed load is flat, and leaks that are planted are found: `make soak` in small."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.soak.flatness import Bound, Point, theil_sen, thinned, trend
from tests.soak.leaks import LEAKS
from tests.soak.ledger import Ledger, RecordName
from tests.soak.run import report
from tests.soak.samples import DESCRIPTORS, DISK, MEMORY, THREADS
from tests.soak.scale import MINUTE
from tests.soak.soak import soak

ENOUGH = {
    "transactions committed": 100,
    "transactions aborted": 25,
    "group": 10,
    "confluent group": 5,
    "topic": 15,
    "visitor": 20,
    "confluent visitor": 10,
    "confluent transactional id": 5,
    "abandoned transaction": 5,
    "copying": 3,
    "stranger": 50,
    "state": 50,
}
"""How often each must have been done at least in a minute or more, or a run shows nothing."""


def too_little(counts: Counter[str], seconds: float) -> dict[str, int]:
    part = min(1.0, seconds / 70.0)
    return {what: counts[what] for what, enough in ENOUGH.items() if counts[what] < enough * part}


@pytest.mark.parametrize(
    ("durability", "seconds"),
    [("fsync", 45.0), pytest.param("os", 150.0, marks=pytest.mark.long)],
)
def test_mixed_load_is_flat_and_each_record_is_there_once(
    durability: str, seconds: float, tmp_path: Path
) -> None:
    outcome = soak(tmp_path, seconds, MINUTE, durability=durability)
    assert outcome.is_good, report(outcome, MINUTE)
    assert not too_little(outcome.counts, seconds)


@pytest.mark.long
def test_every_planted_leak_is_found(tmp_path: Path) -> None:
    """All at once: a soak takes its time."""
    outcome = soak(tmp_path, 40.0, MINUTE, leaks=list(LEAKS))
    found = {"Markers.ended", MEMORY, DESCRIPTORS, THREADS, DISK}
    assert found <= outcome.growing.keys(), report(outcome, MINUTE)
    assert not outcome.problems


# --- what is flat -------------------------------------------------------------------------------


def points(values: list[float]) -> list[Point]:
    return [Point(float(at), value) for at, value in enumerate(values)]


def test_a_slope_is_not_moved_by_outliers() -> None:
    assert theil_sen(points([float(3 * each) for each in range(50)])) == pytest.approx(3)
    noisy = [2.0 * each + (1000.0 if each % 9 == 0 else 0.0) for each in range(60)]
    assert theil_sen(points(noisy)) == pytest.approx(2, abs=1)
    assert theil_sen([]) == theil_sen(points([5.0])) == 0


def test_long_series_are_thinned_by_medians() -> None:
    found = thinned(points([float(each) for each in range(1000)]), most=100)
    assert len(found) == 100
    assert found[0] == Point(4.5, 4.5)
    assert thinned([]) == []


BOUND = Bound(60, 0.3)


def test_what_grows_is_told_from_what_does_not() -> None:
    rand = random.Random(1)
    level = [1000 + rand.uniform(-50, 50) for _ in range(120)]
    assert trend(points(level)).is_flat(BOUND)
    assert not trend(points([4.0 * each for each in range(120)])).is_flat(BOUND)
    warming = [min(each, 60) * 100.0 for each in range(120)]
    assert trend(points(warming)).is_flat(BOUND)
    wave = [500 + 400 * math.sin(each / 6) for each in range(120)]
    assert trend(points(wave)).is_flat(BOUND)
    assert trend(points([100.0] * 80 + [400.0] * 40)).is_flat(BOUND)  # one step is no trend
    stairs = [float(each // 15 * 100) for each in range(120)]
    assert not trend(points(stairs)).is_flat(BOUND)
    falling = [1000.0 - each for each in range(120)]
    assert trend(points(falling)).is_flat(Bound(0))


def test_too_few_measurements_show_nothing() -> None:
    with pytest.raises(ValueError, match="too few"):
        trend(points([1.0] * 8))


# --- the ledger ---------------------------------------------------------------------------------


def seen(ledger: Ledger, number: int, *indexes: int, partition: int = 0) -> None:
    for index in indexes:
        ledger.seen("t", partition, RecordName.encode("a b", number, index))


def test_what_was_committed_and_seen_once_is_right() -> None:
    ledger = Ledger("t")
    assert [ledger.begin("a b"), ledger.begin("a b"), ledger.begin("c")] == [1, 2, 1]
    seen(ledger, 1, 0)  # before the commit is answered
    settled = [ledger.is_settled]
    ledger.committed("a b", 1, 2)
    seen(ledger, 1, 1, partition=1)
    ledger.aborted("a b", 2)
    assert [*settled, ledger.is_settled] == [False, True]
    assert ledger.problems() == []


def test_what_is_lost_doubled_or_aborted_and_seen_is_named() -> None:
    lost = Ledger("t")
    lost.committed("a b", 1, 2)
    seen(lost, 1, 0)
    assert lost.problems() == ["t: 1 records of transaction 1 of a b are missing"]
    twice = Ledger("t")
    twice.committed("a b", 1, 1)
    seen(twice, 1, 0, 0)
    assert "twice, or out of order" in twice.problems()[0]
    aborted = Ledger("t")
    seen(aborted, 1, 0)
    aborted.aborted("a b", 1)
    seen(aborted, 1, 1)
    assert sum("which was aborted" in each for each in aborted.problems()) == 2
    invented = Ledger("t")
    seen(invented, 7, 0)
    assert "never committed" in invented.problems()[0]
