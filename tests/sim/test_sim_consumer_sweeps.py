"""The sweeps of consumers, in a short form."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.client.consumer_work import ConsumerWork
from onceflow.client.fetcher import Fetcher
from tests.sim.consumer_sweeps import (
    FATES,
    OTHERS,
    TAKES,
    Broken,
    strike,
    sweep_cuts,
    sweep_requests,
)
from tests.sim.cutting import When
from tests.unit.request_taps import Fate

STEP = 11


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


def _never(*_: Any, **__: Any) -> None:
    """What was to be done is not."""


async def _next_and_a_pause(self: Fetcher, timeout_s: float, *, max_records: int = 500) -> Any:
    """Waits for something when rows have left already."""
    if not await self._ready(timeout_s, max_records):
        return []
    found = self.delivery.records(max_records)
    await asyncio.sleep(0)
    return found


BUGS: dict[str, tuple[type, str, Any, str]] = {
    "tasks that are not told to end": (ConsumerWork, "_stop", _never, "close"),
    "waiting when rows have left": (Fetcher, "next_records", _next_and_a_pause, "poll"),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_planted_bugs_are_found(
    bug: tuple[type, str, Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, instead, call = bug
    monkeypatch.setattr(kind, name, instead)
    with pytest.raises((Broken, TimeoutError)):
        _sweep_both(call)


def _sweep_both(call: str) -> None:
    for when in When:
        sweep_cuts(call, when)
