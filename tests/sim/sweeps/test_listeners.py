"""The sweep of listeners, in a short form."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from onceflow.client.consumer.consumer_work import ConsumerWork
from onceflow.client.consumer.rebalance import Rebalancer
from tests.sim.sweeps.consumers import Broken
from tests.sim.sweeps.listeners import DEEDS, STRATEGIES, WORDS, ListenerError, close, listen

ALL = [*itertools.product(WORDS, DEEDS)]


@pytest.mark.parametrize(("number", "word", "name"), [(n, *each) for n, each in enumerate(ALL)])
def test_whatever_a_listener_does_no_row_is_lost_nor_committed_unread(
    number: int, word: str, name: str
) -> None:
    assert listen(STRATEGIES[number % 2], word, DEEDS[name], times=1) == 1


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("word", "name"), ALL)
def test_the_same_with_both_strategies_and_again(
    strategy: str, word: str, name: str, times: int
) -> None:
    assert listen(strategy, word, DEEDS[name], times) > 0


@pytest.mark.parametrize("name", DEEDS)
def test_a_close_ends_everything_whatever_the_listener_does(name: str) -> None:
    outcome = close(DEEDS[name])
    expected = ListenerError if name == "raise" else type(None)
    assert isinstance(outcome, expected)


def test_it_finds_a_consumer_that_reads_on_what_it_has_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ConsumerWork, "end", lambda work, partitions: None)
    with pytest.raises(Broken):
        listen("range", "lost", DEEDS["commit"], times=1)


def test_it_finds_a_close_that_waits_for_its_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as that likes, and beats meanwhile."""

    async def go_on(rebalancer: Rebalancer) -> None:
        asyncio.get_running_loop().create_task(asyncio.sleep(1e6))

    monkeypatch.setattr(Rebalancer, "give_up_all", go_on)
    with pytest.raises(Broken):
        close(DEEDS["sleep"])
