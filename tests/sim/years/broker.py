"""A year in a minute: a broker and its clients in one simulated world, through all days of years.

    python -m tests.sim.years.broker [--years 3] [--seed 1] [--days 365]

Work is done on some days and not on others, records and ids grow old, the broker is stopped, killed
and loses its power, and its clock is set ahead and back. At the end of every day all that can be
asked of the broker is held against what its clients were told (`year_judge`, `year_model`). Prints
what happened in each year; ends with status 1 at the first broken promise, which the seed brings
back.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from onceflow.testing.world import World, run
from tests.sim.txn.history import NEW, OLD, PromiseBroken
from tests.sim.years.bounds import Bounds
from tests.sim.years.clients import (
    Backfill,
    Committer,
    Member,
    Operator,
    Transactor,
    TwoPhase,
    Writer,
)
from tests.sim.years.judge import Judge
from tests.sim.years.machine import DAY_MS, DAY_S, HOUR_MS, HOUR_S, Machine, rare_sweeps
from tests.sim.years.model import Model

DURABILITIES: Final = ("fsync", "os")


class Shape(NamedTuple):
    """How long, and on what kind of broker."""

    durability: str = "fsync"
    days: int = 365


class Told(NamedTuple):
    """What happened in a world."""

    did: Counter[str]
    handed_out: int


class Year:
    """One world."""

    def __init__(self, world: World, shape: Shape) -> None:
        self._shape = shape
        self._rand = world.rand.fork("calendar")
        self.machine = Machine(world, shape.durability)
        self.model = Model(self.machine.clocks)
        doors = self.machine, self.model
        self._operator = Operator(*doors, "operator")
        self._judge = Judge(*doors, "judge")
        self._bounds = Bounds(self.machine)
        self._backfill = Backfill(*doors, "backfill")
        self._two_phase = TwoPhase(*doors, "two phases")
        self._daily: list[Writer | Transactor | Committer] = [
            Writer(*doors, "writer"),
            Transactor(*doors, "newer", NEW),
            Transactor(*doors, "older", OLD),
            Committer(*doors, "committer"),
            Member(*doors, "member"),
        ]
        self._rare: list[Writer | Transactor] = [
            Writer(*doors, "rare writer"),
            Transactor(*doors, "rare newer", NEW),
            Transactor(*doors, "rare older", OLD),
        ]
        self._holidays = 0
        self._ahead_until = -1
        self._ahead_ms = 0

    def _chance(self, one_in: int) -> bool:
        return self._rand.randrange(one_in) == 0

    async def main(self) -> Told:
        await self.machine.start()
        await self._operator.prepare()
        for day in range(self._shape.days):
            try:
                await self._day(day)
            except PromiseBroken as error:
                before = "\n  ".join(self.machine.diary)
                raise PromiseBroken(f"day {day}: {error}\nBefore that:\n  {before}") from error
        await self.machine.stop()
        return Told(self.machine.did, len(self.model.handed_out))

    # --- a day ----------------------------------------------------------------------------------

    async def _day(self, day: int) -> None:
        until = self.machine.clocks.now() + DAY_S
        if self._holidays:
            self._holidays -= 1
            self.machine.note("holidays")
        elif self._chance(60):
            self._holidays = 5 + self._rand.randrange(25)
        else:
            await self._working_day(day)
        left = until - self.machine.clocks.now()
        if left > 0:
            await asyncio.sleep(left)
        await self._judge.day(whole=day % 30 == 29)
        self._bounds.check(thorough=day % 7 == 6)
        self.machine.tidy()

    async def _working_day(self, day: int) -> None:
        await asyncio.sleep(self._rand.uniform(0, 4 * HOUR_S))
        self._set_clocks(day)
        for _ in range(1 + self._rand.randrange(2)):
            if not self._chance(4):
                await self._shift()
            await asyncio.sleep(self._rand.uniform(0, 6 * HOUR_S))
            await self._backfill.repeat()
            if self._chance(5):
                await self._trouble()

    async def _shift(self) -> None:
        """Some work; sometimes the broker ends in the midst of it."""
        workers: list[Any] = [each for each in self._daily if not self._chance(3)]
        workers += [each for each in self._rare if self._chance(9)]
        if self._chance(3):
            workers.append(self._backfill)
        if self._chance(4):
            workers.append(self._operator)
        if self._chance(5):
            workers.append(self._two_phase)
        self.machine.note("shifts")
        # One who left while the others work must not be what they work with.
        work = [each.work() for each in workers]
        if self._chance(6):
            await self._with_trouble(work)
        else:
            await asyncio.gather(*work)
        self.machine.shrink_own_logs()

    async def _with_trouble(self, work: list[Awaitable[None]]) -> None:
        working = asyncio.gather(*work)
        await asyncio.sleep(self._rand.uniform(0, 0.2))
        ends: tuple[Callable[[], Awaitable[None]], ...] = (self._stop, self._kill)
        if self._shape.durability == "fsync":
            ends += (self._cut, self._cut)
        await ends[self._rand.randrange(len(ends))]()
        await working

    # --- trouble --------------------------------------------------------------------------------

    async def _trouble(self) -> None:
        ends = (self._stop, self._stop, self._kill, self._cut)
        await ends[self._rand.randrange(len(ends))]()

    def _away_s(self) -> float:
        """Mostly short, sometimes long."""
        if self._chance(6):
            return self._rand.uniform(HOUR_S, 4 * HOUR_S)
        return self._rand.uniform(0.5, 3.0)

    async def _stop(self) -> None:
        await self.machine.stop()
        await self._start_again()

    async def _kill(self) -> None:
        self.machine.kill()
        await self._start_again()

    async def _cut(self) -> None:
        sure_until = self.machine.started_at
        self.machine.cut_power()
        await self._start_again()
        if self._shape.durability == "os":
            await self._recover(sure_until)

    async def _start_again(self) -> None:
        await asyncio.sleep(self._away_s())
        await self.machine.start()
        await self._judge.topics()

    async def _recover(self, sure_until: float) -> None:
        """Acknowledged is not durable here: everybody begins anew with what there is."""
        self.model.lost_power()
        for client in (*self._daily, *self._rare):
            if not isinstance(client, Committer) or isinstance(client, Member):
                client.start_again()
        await self._two_phase.give_up()
        await asyncio.sleep(20.0)  # what was left open is over
        await self._judge.take_stock(sure_until)

    def _set_clocks(self, day: int) -> None:
        machine = self.machine
        if self._ahead_ms:
            if day >= self._ahead_until:
                machine.set_clock(-self._ahead_ms)
                self._ahead_ms = 0
        elif self._chance(100):
            self._ahead_ms = 30 * DAY_MS
            self._ahead_until = day + 1 + self._rand.randrange(4)
            machine.set_clock(self._ahead_ms)
        elif self._chance(30):
            machine.set_clock((1 - 2 * self._rand.randrange(2)) * self._rand.randrange(6 * HOUR_MS))
        elif self._chance(40):
            machine.stand_still(self._rand.uniform(60.0, 3 * DAY_S))
        elif self._chance(60):
            machine.sleep(self._rand.uniform(HOUR_S, 4 * DAY_S))


def workload(shape: Shape) -> Callable[[World], Awaitable[Told]]:
    """What to run in a world."""

    async def main(world: World) -> Told:
        return await Year(world, shape).main()

    return main


def live(seed: int, shape: Shape) -> tuple[Told, str]:
    """One world of this seed, and the hash of its trace."""
    with rare_sweeps():
        return run(
            seed,
            workload(shape),
            max_steps=1_000_000 * shape.days,
            max_virtual_seconds=3 * shape.days * DAY_S,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Years of a broker, in minutes.")
    parser.add_argument("--years", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--days", type=int, default=365)
    arguments = parser.parse_args()
    logging.getLogger("onceflow").setLevel(logging.CRITICAL)
    for seed in range(arguments.seed, arguments.seed + arguments.years):
        shape = Shape(DURABILITIES[seed % len(DURABILITIES)], arguments.days)
        began = time.process_time()
        try:
            told, trace = live(seed, shape)
        except PromiseBroken as error:
            sys.exit(f"BROKEN: seed {seed}, durability {shape.durability}, {error}")
        seconds = time.process_time() - began
        did = ", ".join(f"{what} {count}" for what, count in sorted(told.did.items()))
        print(
            f"seed {seed}, durability {shape.durability}: {shape.days} days in {seconds:.0f} s "
            f"of CPU, nothing broken ({did}; {told.handed_out} producer ids; trace {trace[:8]})",
            flush=True,
        )


if __name__ == "__main__":
    main()
