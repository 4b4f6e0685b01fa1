"""The sweeps of two sessions, in a short form."""

from __future__ import annotations

from functools import cache
from itertools import cycle

import pytest

from onceflow.wire.api import ApiKey
from tests.sim.sweeps.cutting import When
from tests.sim.sweeps.sessions import (
    ONE,
    TROUBLES,
    WAYS,
    Way,
    copy_by_two,
    nothing_happens,
    sweep_session_cuts,
    sweep_sessions,
)
from tests.unit.client.request_taps import Late, once

STEP = 113
CUTS = list(zip(WAYS, cycle(When), strict=False))
STRUCK = [
    (way, word) for number, way in enumerate(WAYS) for word in list(TROUBLES)[number % 2 :: 2]
]

pytestmark = pytest.mark.usefixtures("quiet")


@cache
def count_requests(name: str) -> int:
    return copy_by_two(WAYS[name], nothing_happens)[0]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_answer_that_is_held_back_beyond_a_rebalance_commits_nothing_twice(way: Way) -> None:
    """Where to begin is asked, the partition goes to the other one and comes back; then the answer
    is there."""
    copy_by_two(way, once(ApiKey.LIST_OFFSETS, Late(8), host=ONE))


@pytest.mark.parametrize(("name", "word"), STRUCK)
def test_no_single_request_that_goes_wrong_loses_or_doubles_a_row(name: str, word: str) -> None:
    numbers = range(list(TROUBLES).index(word), count_requests(name), STEP)
    sweep_sessions(WAYS[name], TROUBLES[word], numbers)


@pytest.mark.parametrize(("name", "when"), CUTS)
def test_a_session_that_is_cancelled_leaves_all_or_nothing(name: str, when: When) -> None:
    assert sweep_session_cuts(WAYS[name], when, step=23) > 40
