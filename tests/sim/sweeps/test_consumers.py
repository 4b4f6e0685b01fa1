"""The sweeps of consumers, in a short form."""

from __future__ import annotations

import pytest

from tests.sim.sweeps.consumers import (
    FATES,
    OTHERS,
    TAKES,
    strike,
    sweep_cuts,
    sweep_polls,
    sweep_requests,
)
from tests.sim.sweeps.cutting import When
from tests.unit.client.request_taps import Fate

STEP = 23


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("name", [*TAKES, *OTHERS])
def test_whoever_is_cancelled_loses_nothing_and_leaves_nothing_behind(
    name: str, when: When
) -> None:
    awaits = sweep_cuts(name, when)
    assert awaits > 0 or name in ("seek", "position")  # which need not wait here


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("fate", FATES.values(), ids=FATES)
def test_no_single_request_that_goes_wrong_loses_or_repeats_what_is_committed(
    strategy: str, fate: Fate
) -> None:
    count = strike(strategy, None, None)
    first = sorted(FATES).index(next(name for name, each in FATES.items() if each is fate))
    sweep_requests(strategy, fate, range(first, count, STEP))


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_poll_that_is_cut_in_a_rebalance_leaves_nothing_half_done(strategy: str) -> None:
    assert sweep_polls(strategy, step=5) > 20
