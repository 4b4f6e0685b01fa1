"""Clock and Rand, real and simulated."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import pytest

from onceflow.runtime.clock import Clock, RealClock, SteadyClock
from onceflow.runtime.rand import Rand, RealRand
from onceflow.testing.clock import WALL_START_MS, SimClock
from onceflow.testing.rand import SimRand
from onceflow.testing.world import World, run


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


DAY_MS = 24 * 3_600_000


@pytest.mark.parametrize(
    "jumps",
    [
        (30,),
        (-30,),
        (30, -30),
        (-30, 30),
        (30, -60, 30),
        (1, 30),
        (1, 30, -31, 90),
        (30, -29, 90, 1),
    ],
)
def test_nothing_is_older_than_it_is_however_the_wall_clock_jumps(jumps: tuple[int, ...]) -> None:
    async def main(world: World) -> None:
        clock: SimClock = world.clock
        stamped = {clock.wall_ms() - 5 * DAY_MS: -5 * DAY_MS, clock.wall_ms(): 0}
        steady = SteadyClock(clock)
        for jump in jumps:
            clock.jump_wall(jump * DAY_MS)
            await asyncio.sleep(3600)
            stamped.setdefault(steady.wall_ms(), int(clock.monotonic() * 1000))
            for stamp_ms, at_ms in stamped.items():
                assert steady.age_ms(stamp_ms) <= int(clock.monotonic() * 1000) - at_ms
        assert steady.age_ms(max(stamped)) <= 3_600_000

    run(1, main)


def test_what_was_stamped_behind_a_jump_grows_old_all_the_same() -> None:
    """As on a laptop that slept for a day: its monotonic clock does not know of that."""

    async def main(world: World) -> None:
        clock: SimClock = world.clock
        steady = SteadyClock(clock)
        clock.jump_wall(DAY_MS)
        stamp_ms = steady.wall_ms()
        await asyncio.sleep(12 * 3600)
        assert steady.age_ms(stamp_ms) == DAY_MS / 2
        clock.jump_wall(30 * DAY_MS)
        assert steady.age_ms(stamp_ms) == DAY_MS / 2
        await asyncio.sleep(3 * 24 * 3600)
        assert steady.age_ms(stamp_ms) > 2 * DAY_MS

    run(1, main)


def test_a_clock_that_was_behind_at_the_start_and_was_put_right_tells_ages_again() -> None:
    """As on a machine that learns the time from others after it has started."""

    async def main(world: World) -> None:
        clock: SimClock = world.clock
        before = clock.wall_ms() - DAY_MS
        clock.jump_wall(-20_000 * DAY_MS)
        steady = SteadyClock(clock)
        assert steady.age_ms(before) < 0
        clock.jump_wall(20_000 * DAY_MS)
        await asyncio.sleep(3600)
        assert steady.age_ms(before) == DAY_MS + 3_600_000

    run(1, main)
