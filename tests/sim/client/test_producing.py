"""The real client against the real broker, with requests lost, late, doubled and reordered, and a
broker that loses its power: exactly once, in order, whole or not at all, as each program was told.

And the proof that these tests can fail: each of a list of bugs, planted in the client, is found.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.errors.requests import AbortableError
from onceflow.client.producer.producer import Producer
from onceflow.testing.connection import TappedWrite
from onceflow.testing.faults import Deliver, Redeliver, Side, TapAction
from onceflow.testing.world import World, run
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from tests.doses import some_long
from tests.sim.client.bugs import BUGS, Bug
from tests.sim.client.campaign import check_seed, numbers_of, play
from tests.sim.client.history import End, Outcome
from tests.sim.client.judge import judge
from tests.sim.client.programs import ADDRESS
from tests.sim.client.proxy import Fate
from tests.sim.client.transactors import OlderProducer
from tests.sim.client.workload import SHAPES, Broker
from tests.sim.txn.history import PromiseBroken

SEEDS = range(2)
SEEDS_TO_TRY = range(12)

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("seeds", [1, pytest.param(len(SEEDS), marks=pytest.mark.long)])
def test_what_programs_were_told_is_so_and_equal_seeds_give_equal_traces(seeds: int) -> None:
    happened: Counter[str] = Counter()
    for name, shape in SHAPES.items():
        for seed in SEEDS[:seeds]:
            try:
                happened.update(numbers_of(check_seed(seed, shape)))
            except PromiseBroken as error:
                raise PromiseBroken(f"seed {seed} of {name!r}: {error}") from error
    kinds = {event.rpartition(" ")[2] for event in happened}
    assert kinds >= {fate.name for fate in Fate}, "every fault has happened"
    assert kinds >= {end.name for end in End}, "every end of a transaction has been seen"
    assert kinds >= {outcome.name for outcome in Outcome}
    assert happened["broker crashed"]
    assert happened["host cut off"]
    assert happened["producer fenced"]


def find(bug: Bug, patch: pytest.MonkeyPatch) -> None:
    """Raises what the judge says of a client with a bug. It shows in one of the first seeds, but
    every change of client or broker moves the moments at which faults strike."""
    bug.plant(patch)
    for seed in SEEDS_TO_TRY:
        judge(*play(seed, SHAPES[bug.shape])[0])


@pytest.mark.parametrize("name", some_long(BUGS, "epoch_used_again_after_doubt"))
def test_the_judge_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    with pytest.raises(PromiseBroken, match=bug.verdict):
        find(bug, monkeypatch)


class Copied:
    """A tap: the answer to the first request of its kind is lost, and a copy of it comes late."""

    def __init__(self, key: ApiKey) -> None:
        self._key = key
        self.is_done = False

    def __call__(self, write: TappedWrite) -> list[TapAction]:
        is_meant = int.from_bytes(write.data[4:6], "big") == self._key
        if self.is_done or write.direction is Side.SERVER or not is_meant:
            return [Deliver(write.data)]
        self.is_done = True
        write.connection.lose_responses()
        return [Deliver(write.data), Redeliver(write.data, after_s=2.0)]


Program = Callable[[Admin, Producer], Awaitable[None]]
INPUT = TopicPartition("a", 0)


def with_a_late_copy(key: ApiKey, kind: type[Producer], program: Program) -> None:
    """Runs a program that has a topic and a producer."""
    copied = Copied(key)

    async def main(world: World) -> None:
        broker = Broker(world)
        await broker.start()
        doors: dict[str, Any] = {"net": world.net.host("program"), "clock": world.clock}
        async with (
            Admin(str(ADDRESS), rand=world.rand.fork("admin"), **doors) as admin,
            kind(
                str(ADDRESS), transactional_id="t", rand=world.rand.fork("t"), **doors
            ) as producer,
        ):
            await admin.create_topic("a", partitions=1)
            world.net.tap(copied)
            await program(admin, producer)
        await broker.stop()

    run(1, main)
    assert copied.is_done


@pytest.mark.parametrize("key", [ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN], ids=str)
@pytest.mark.parametrize("kind", [OlderProducer, Producer])
def test_a_late_copy_does_not_reach_the_next_transaction(key: ApiKey, kind: type[Producer]) -> None:
    async def program(admin: Admin, producer: Producer) -> None:
        for offset, seconds in ((10, 0), (20, 3)):
            async with producer.transaction() as transaction:
                await transaction.send("a", b"%d" % offset)
                await transaction.send_offsets({INPUT: offset}, "g")
                await asyncio.sleep(seconds)
                assert await admin.list_transactions(states=["Ongoing"]), "it is still open"
            assert await admin.committed_offsets("g") == {INPUT: offset}

    with_a_late_copy(key, kind, program)


@pytest.mark.parametrize("kind", [OlderProducer, Producer])
def test_a_late_copy_does_not_set_back_offsets_in_its_own_transaction(
    kind: type[Producer],
) -> None:
    async def program(admin: Admin, producer: Producer) -> None:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({INPUT: 10}, "g")
        await producer.send_offsets_to_transaction({INPUT: 15}, "another")
        with pytest.raises(AbortableError, match="a copy of earlier offsets of group 'g'"):
            await producer.send_offsets_to_transaction({INPUT: 20}, "g")
        await producer.abort_transaction()
        async with producer.transaction() as transaction:
            await transaction.send_offsets({INPUT: 10}, "g")
            await transaction.send_offsets({INPUT: 20}, "g")
            await asyncio.sleep(3)
        assert await admin.committed_offsets("g") == {INPUT: 20}
        assert await admin.committed_offsets("another") == {}

    with_a_late_copy(ApiKey.TXN_OFFSET_COMMIT, kind, program)


def test_another_process_with_another_hash_seed_gives_the_same_traces() -> None:
    here = f"{play(0, SHAPES['all'])[1]}\n"
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.client.workload", "1"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout == here
