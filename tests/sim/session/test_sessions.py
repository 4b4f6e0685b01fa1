"""Sessions under everything that can happen to them, and the proof that these tests can fail: bugs
that are planted in a session are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceflow.client.codec.transactions import GroupMember
from onceflow.client.session.clients import SessionConsumer, SessionProducer
from onceflow.client.session.session import Session
from onceflow.testing.world import run
from tests.doses import some_long
from tests.sim.session.workload import GROUP, SHAPES, Outcome, Shape, workload

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2)))
SEEDS_TO_TRY = range(24)

pytestmark = pytest.mark.usefixtures("quiet")


def play(seed: int, shape: Shape) -> Outcome:
    outcome, _ = run(seed, workload(shape))
    return outcome


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_record_is_copied_once_and_in_order(seed: int, name: str) -> None:
    outcome = play(seed, SHAPES[name])
    assert outcome.copied == outcome.expected
    assert outcome.committed == {
        partition: len(values) for partition, values in outcome.expected.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(100, 130))
def test_the_same_with_many_seeds(seed: int, name: str) -> None:
    outcome = play(seed, SHAPES[name])
    assert outcome.copied == outcome.expected


# --- bugs -----------------------------------------------------------------------------------------


def anybody(self: SessionConsumer) -> GroupMember:
    return GroupMember(GROUP)


def nowhere(self: SessionConsumer, positions: Any) -> None:
    return None


async def without_offsets(self: SessionProducer, offsets: Any, member: Any) -> None:
    await self.flush()


async def commits_always(self: Session, kind: Any, error: Any, traceback: Any) -> None:
    await self.close(commit=True)


BUGS: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "offsets are not fenced": (SessionConsumer, "group_metadata", anybody, "eager"),
    "aborted work is not done again": (SessionConsumer, "go_back", nowhere, "slow"),
    "offsets are left out": (SessionProducer, "commit_with", without_offsets, "eager"),
    "failed work is committed": (Session, "__aexit__", commits_always, "eager"),
}


@pytest.mark.parametrize("name", some_long(BUGS, "offsets are left out"))
def test_a_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, replacement, shape = BUGS[name]
    monkeypatch.setattr(owner, method, replacement)
    for seed in SEEDS_TO_TRY:
        try:
            outcome = play(seed, SHAPES[shape])
        except TimeoutError:
            return  # it never comes to its end
        if outcome.copied != outcome.expected:
            return
    pytest.fail(f"{name}: nobody noticed")
