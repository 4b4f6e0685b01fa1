"""Clock and Rand, real and simulated."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import pytest

from onceflow.runtime.clock import Clock, RealClock
from onceflow.runtime.rand import Rand, RealRand, SimRand
from onceflow.runtime.sim_clock import WALL_START_MS, SimClock
from onceflow.runtime.sim_world import World, run


def draws(rand: Rand) -> tuple[UUID, bytes, float, int, list[int]]:
    items = list(range(20))
    rand.shuffle(items)
    return rand.uuid4(), rand.randbytes(9), rand.uniform(2.0, 3.0), rand.randrange(1000), items


@pytest.mark.parametrize("rand", [RealRand(), SimRand(7)], ids=["real", "sim"])
def test_draws_keep_their_promises(rand: Rand) -> None:
    uuid, data, number, index, items = draws(rand)
    assert uuid.version == 4
    assert len(data) == 9
    assert 2.0 <= number <= 3.0
    assert 0 <= index < 1000
    assert sorted(items) == list(range(20))
    assert draws(rand)[0] != uuid


def test_a_seed_decides_all_draws() -> None:
    assert draws(SimRand(7)) == draws(SimRand(7))
    assert draws(SimRand(7)) != draws(SimRand(8))


def test_forks_are_independent_of_draws_and_of_each_other() -> None:
    fresh, used = SimRand(7), SimRand(7)
    draws(used)
    draws(used.fork("net"))
    assert draws(fresh.fork("disk")) == draws(used.fork("disk"))
    assert draws(fresh.fork("disk")) != draws(fresh.fork("net"))
    assert draws(fresh.fork("a").fork("b")) != draws(fresh.fork("b").fork("a"))
    assert draws(fresh.fork("a").fork("b")) != draws(fresh.fork("a/b"))


def test_real_clock_reads_the_system_clocks() -> None:
    clock: Clock = RealClock()
    before = time.time()
    assert before - 0.002 <= clock.wall_ms() / 1000 <= time.time()
    first = clock.monotonic()
    assert first <= clock.monotonic()


def test_wall_jumps_move_neither_monotonic_nor_timers() -> None:
    async def main(world: World) -> None:
        clock: SimClock = world.clock
        assert (clock.wall_ms(), clock.monotonic()) == (WALL_START_MS, 0.0)
        timer = asyncio.create_task(asyncio.sleep(10.0))
        await asyncio.sleep(4.0)
        clock.jump_wall(3_600_000)
        assert clock.wall_ms() == WALL_START_MS + 3_604_000
        clock.jump_wall(-7_200_000)
        assert clock.wall_ms() == WALL_START_MS - 3_596_000
        assert clock.monotonic() == 4.0
        await timer
        assert clock.monotonic() == 10.0

    run(1, main)
