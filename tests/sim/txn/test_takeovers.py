"""Owners of one transactional id that take it over from each other, all at once.

Each asks for an identity, fresh or by naming the one it had, writes to two partitions, and commits,
aborts or walks away, while others do the same, answers get lost, and the broker is killed or its
power is cut between two lives. What was acknowledged as committed is there as a whole; what was
aborted, refused or left is nowhere; no identity is given to two; and nothing stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World, run
from onceflow.txn import initialising
from onceflow.txn.decisions import Finish
from onceflow.txn.ending import end_with_new_epoch
from onceflow.txn.state import TransactionMetadata
from onceflow.wire.api import ApiKey
from tests.sim.txn.client import AGAIN, END, INIT, PRODUCE, Caller, Requests, make_batch
from tests.sim.txn.history import NEW, OLD, Identity, Place, PromiseBroken
from tests.sim.txn.workload import FAULTS, make_topics
from tests.unit.broker.broker_under_test import simulated_broker
from tests.unit.broker.txn.transactional_requests import LEFT_BY, committed, ends

ID = "the one"
PLACES = (Place("a", 0), Place("a", 1))
OWNERS = (NEW, OLD, NEW)
TRANSACTIONS = 6
SEEDS = 12
TIMEOUT_MS = 60_000
_SEGMENT_BYTES = 2500

pytestmark = pytest.mark.usefixtures("quiet")


@dataclass(slots=True)
class Attempt:
    """One transaction, with a record of the same value for each partition."""

    value: bytes
    identity: Identity
    commit: bool | None = None
    """What was asked for; None while nothing was."""
    code: str = ""
    """What was answered."""
    is_asked_again: bool = False
    """An answer may have been lost, so that a refusal says nothing about what was done before."""

    @property
    def outcomes(self) -> set[bool]:
        """Whether readers see it: what may be, after what was answered."""
        if not self.commit:
            return {False}
        if self.code == "NONE":
            return {True}
        return {False, True} if self.is_asked_again else {False}


@dataclass(slots=True)
class Ledger:
    attempts: list[Attempt] = field(default_factory=list)
    given: dict[Identity, str] = field(default_factory=dict)
    """To whom each identity was given."""
    takeovers: int = 0

    def give(self, identity: Identity, owner: str) -> None:
        before = self.given.setdefault(identity, owner)
        if before != owner:
            raise PromiseBroken(f"{identity} was given to {before} and to {owner}")


class Owner:
    """One that wants the id for itself."""

    def __init__(self, world: World, number: int, generation: int, ledger: Ledger) -> None:
        self._name = f"owner-{number}"
        self._generation = generation
        self._ledger = ledger
        self._rand = world.rand.fork(self._name)
        self._failures: list[str] = []
        self.caller = Caller(self._name, self._rand, self._failures)
        self._identity: Identity | None = None
        self._is_used = False
        """It has written under its identity, and would have to go on from those sequences."""
        self._count = 0

    async def run(self, transactions: int) -> None:
        for _ in range(transactions):
            if self._identity is None or self._is_used or self._rand.randrange(4) == 0:
                await self._take_over()
            if self._identity is not None:
                await self._transaction(self._identity)
            await asyncio.sleep(self._rand.uniform(0, 0.03))

    async def _ask(self, key: ApiKey, version: int, fields: Any) -> Any:
        """The answer that is not "ask again"; Produce's of its one partition."""
        while True:
            (answer,) = await self.caller.ask(key, version, fields)
            if key is ApiKey.PRODUCE:
                answer = answer["responses"][0]["partition_responses"][0]
            if answer["error_code"] not in AGAIN:
                return answer
            await asyncio.sleep(self._rand.uniform(0.001, 0.02))

    async def _take_over(self) -> None:
        expected = self._identity if self._rand.randrange(2) else None
        answer = await self._ask(
            ApiKey.INIT_PRODUCER_ID, INIT, Requests.init(ID, TIMEOUT_MS, expected)
        )
        self._identity, self._is_used = None, False
        if answer["error_code"] == "NONE":
            self._identity = Identity(answer["producer_id"], answer["producer_epoch"])
            self._ledger.give(self._identity, self._name)
            self._ledger.takeovers += 1
        elif expected is None:
            raise PromiseBroken(f"a takeover is refused with {answer['error_code']}")

    async def _transaction(self, identity: Identity) -> None:
        self._count += 1
        attempt = Attempt(f"{self._name}/{self._count}".encode(), identity)
        self._ledger.attempts.append(attempt)
        self._is_used = True
        for place in PLACES:
            if not await self._write(attempt, place):
                self._identity = None
                return
        fate = self._rand.randrange(5)
        if fate == 0:
            return  # whoever takes over ends it, and that may be this one
        attempt.commit, failed = fate > 1, len(self._failures)
        fields = Requests.end(ID, identity, commit=attempt.commit)
        answer = await self._ask(ApiKey.END_TXN, END[self._generation], fields)
        attempt.code, attempt.is_asked_again = answer["error_code"], len(self._failures) > failed
        if attempt.code != "NONE":
            self._identity = None
        elif self._generation == NEW:
            self._identity = Identity(answer["producer_id"], answer["producer_epoch"])
            self._is_used = False
            self._ledger.give(self._identity, self._name)

    async def _write(self, attempt: Attempt, place: Place) -> bool:
        if self._generation == OLD:
            fields = Requests.add(ID, attempt.identity, place)
            (answer,) = await self.caller.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields)
            (row,) = answer["results_by_topic_v3_and_below"][0]["results_by_partition"]
            if row["partition_error_code"] != "NONE":
                return False
        data = make_batch(attempt.identity, 0, [attempt.value], transactional=True)
        fields = Requests.produce(ID, [(place, data)])
        answer = await self._ask(ApiKey.PRODUCE, PRODUCE[self._generation], fields)
        return bool(answer["error_code"] == "NONE")


async def _live(world: World, ledger: Ledger, seed: int) -> SimDisk:
    """Three lives of a broker, each of which ends in the midst of what the owners do; what the last
    one leaves."""
    owners = [Owner(world, *each, ledger) for each in enumerate(OWNERS)]
    disk, cuts = world.disk, list(LEFT_BY.values())
    working: asyncio.Future[Any] | None = None
    for life in range(3):
        async with simulated_broker(world, host=f"life-{life}", disk=disk) as running:
            for each in owners:
                each.caller.running = running
            if working is None:
                await make_topics(owners[0].caller, _SEGMENT_BYTES)
                working = asyncio.gather(*(each.run(TRANSACTIONS) for each in owners))
            if life < 2:
                await asyncio.sleep(world.rand.uniform(0.05, 0.3))
            else:
                await working
            # In one step: no answer arrives of which the next life knows nothing.
            disk = cuts[(seed + life) % len(cuts)](disk)
            for each in owners:
                each.caller.cut()
    return disk


async def _judge(world: World, disk: SimDisk, ledger: Ledger) -> None:
    async with simulated_broker(world, host="judge", disk=disk) as running:
        client = await running.client("judge")
        last = await client.ask(ApiKey.INIT_PRODUCER_ID, INIT, Requests.init(ID, TIMEOUT_MS, None))
        if last["error_code"] != "NONE":
            raise PromiseBroken(f"the last takeover is answered with {last['error_code']}")
        ledger.give(Identity(last["producer_id"], last["producer_epoch"]), "the judge")
        found = []
        for place in PLACES:
            stable, end = await ends(client, place.topic, place.partition)
            if stable != end:
                raise PromiseBroken(f"{place} is open from {stable} on")
            found.append(await committed(client, place.topic, partition=place.partition))
    for attempt in ledger.attempts:
        seen = [values.count(attempt.value) for values in found]
        if seen not in [[int(each)] * len(PLACES) for each in attempt.outcomes]:
            raise PromiseBroken(f"{attempt} is seen {seen} times")


def sweep(seed: int) -> Ledger:
    """Raises `PromiseBroken`."""
    ledger = Ledger()

    async def main(world: World) -> None:
        disk = await _live(world, ledger, seed)
        world.net.heal()
        await _judge(world, disk, ledger)

    run(seed, main, faults=FAULTS)
    return ledger


def sweep_some(seeds: int) -> list[Ledger]:
    return [sweep(seed) for seed in range(seeds)]


def test_takeovers_at_once_lose_nothing_and_show_nothing_that_was_aborted() -> None:
    ledgers = sweep_some(SEEDS)
    attempts = [each for ledger in ledgers for each in ledger.attempts]
    endings = {(each.commit, each.code) for each in attempts}
    assert endings >= {(True, "NONE"), (False, "NONE"), (None, "")}
    assert any(each.commit and each.code not in ("", "NONE") for each in attempts)
    assert sum(each.takeovers for each in ledgers) > 3 * SEEDS


def _fence_by_commit(transaction: TransactionMetadata, **more: Any) -> Finish:
    return end_with_new_epoch(transaction, commit=True, **more)


BUGS = {
    "a takeover that commits": ("fence", _fence_by_commit, "is seen"),
    "a takeover that puts nobody out": ("following", lambda client, _: client, "was given to"),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_the_judge_finds(
    bug: tuple[str, Callable[..., Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, wrong, verdict = bug
    monkeypatch.setattr(initialising, name, wrong)
    with pytest.raises(PromiseBroken, match=verdict):
        sweep_some(3)
