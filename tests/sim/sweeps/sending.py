"""Everything that sends, disturbed once at every place there is: each call is cancelled at its k-th
wait, for every k; each request is lost, late, doubled or left without an answer. Then the program
goes on as the documentation says, and what is in the log is held against what it was told.

    python -m tests.sim.sweeps.sending [--program all]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from onceflow.broker.config.settings import ListenAddress
from onceflow.testing.connection import TappedWrite
from onceflow.testing.faults import Deliver, Redeliver, Side, TapAction
from onceflow.testing.loop import SimTask
from onceflow.testing.world import World, run
from onceflow.wire.api import ApiKey
from tests.sim.txn.history import PromiseBroken
from tests.unit.broker.broker_under_test import simulated_broker

T = TypeVar("T")
HOST: Final = "sender"
LONGEST_S: Final = 600.0
"""Of virtual time; what is not done then hangs."""
LATE_S: Final = 25.0
"""Longer than a session, a rebalance or a transaction may take (`sending_programs`)."""
BROKER: Final[dict[str, Any]] = {
    "advertise": ListenAddress("broker", 9092),
    "group_initial_rebalance_delay_ms": 0,
    "transaction_two_phase_commit_enable": True,
}


class CutShort:
    """Awaiting it is awaiting the work; the task that does is cancelled at the work's `at`-th wait,
    as by `asyncio.timeout` or `Task.cancel`."""

    def __init__(self, work: Coroutine[Any, Any, T], waits: Waits) -> None:
        self._work = work
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        step: Callable[[], Any] = lambda: next(steps)  # noqa: E731  # one of several
        while True:
            try:
                waited = step()
            except StopIteration as end:
                return end.value
            if self._waits.is_last():
                _cancel_soon(asyncio.current_task())
            try:
                sent = yield waited
            except BaseException as error:
                step = lambda error=error: steps.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                step = lambda sent=sent: steps.send(sent)  # type: ignore[misc]  # noqa: E731


def _cancel_soon(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        asyncio.get_running_loop().call_soon(task.cancel)


class Waits:
    """Counts the waits of a program's calls; one of them is the last of its call."""

    def __init__(self, last: int = 0) -> None:
        self.count = 0
        self._last = last
        self.cut = ""
        """The call that was."""

    @property
    def is_cutting(self) -> bool:
        return self._last > 0

    def is_last(self) -> bool:
        self.count += 1
        return self.count == self._last

    async def call(self, name: str, work: Coroutine[Any, Any, T]) -> tuple[bool, T | None]:
        """Whether the call came to its end, and what it returned; raises what it raised."""
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(self._run(work))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if task.cancelled():
            self.cut = name
            return False, None
        return True, task.result()

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        found: T = await CutShort(work, self)
        return found


class Fate(Enum):
    """What becomes of one request."""

    LOST = "the connection breaks before it arrives"
    LATE = "the connection breaks, and it arrives when nobody expects it"
    DOUBLED = "it arrives, and again when nobody expects it"
    ANSWER_LOST = "it arrives, and the connection breaks before the answer"
    SILENCE = "it arrives, and nothing is heard on the connection any more"


_TAKES_OVER: Final = (Fate.LATE, Fate.DOUBLED)
"""What InitProducerId must not meet: a copy of it is another producer of that name."""


class Strike:
    """The tap of a network: one request of the sender meets its fate."""

    def __init__(self, number: int = 0, fate: Fate | None = None) -> None:
        self.requests: list[ApiKey] = []
        self._number = number
        self._fate = fate
        self._deaf: set[int] = set()

    @property
    def struck(self) -> str:
        key = self.requests[self._number - 1] if self._number <= len(self.requests) else None
        return f"{self._fate and self._fate.name} {key.name if key is not None else 'nothing'}"

    def __call__(self, write: TappedWrite) -> list[TapAction]:
        connection = write.connection
        if connection.number in self._deaf:
            return []
        is_ours = connection.addresses[Side.CLIENT].host == HOST
        if write.direction is Side.SERVER or not is_ours:
            return [Deliver(write.data)]
        self.requests.append(ApiKey(int.from_bytes(write.data[4:6], "big")))
        if len(self.requests) != self._number or self._fate is None:
            return [Deliver(write.data)]
        is_init = self.requests[-1] is ApiKey.INIT_PRODUCER_ID
        fate = Fate.LOST if is_init and self._fate in _TAKES_OVER else self._fate
        match fate:
            case Fate.LOST | Fate.LATE:
                connection.reset()
                return [] if fate is Fate.LOST else [Redeliver(write.data, LATE_S)]
            case Fate.DOUBLED:
                return [Deliver(write.data), Redeliver(write.data, LATE_S)]
            case Fate.ANSWER_LOST:
                connection.lose_responses()
            case Fate.SILENCE:
                self._deaf.add(connection.number)
        return [Deliver(write.data)]


class Stage(NamedTuple):
    """Where a program runs."""

    world: World
    waits: Waits


Program = Callable[[Stage], Awaitable[None]]


def play(program: Program, waits: Waits, strike: Strike, seed: int = 1) -> None:
    """Raises `PromiseBroken`."""

    async def main(world: World) -> None:
        async with simulated_broker(world, **BROKER):
            world.net.tap(strike)
            whole = world.loop.spawn(HOST, _limited(program, Stage(world, waits)))
            await asyncio.wait([whole])
            left = [
                task.get_name()
                for task in asyncio.all_tasks()
                if isinstance(task, SimTask)
                and task.process == HOST
                and not task.done()
                and not task.get_name().startswith("redelivery")
            ]
            whole.result()
            if left:
                raise PromiseBroken(f"these tasks have no end: {', '.join(sorted(left))}")

    try:
        run(seed, main)
    except PromiseBroken as error:
        where = f"wait {waits.count}, {waits.cut or 'nothing'} was cut, {strike.struck}"
        raise PromiseBroken(f"{error} ({where})") from error


async def _limited(program: Program, stage: Stage) -> None:
    try:
        async with asyncio.timeout(LONGEST_S):
            await program(stage)
    except TimeoutError:
        raise PromiseBroken(f"not done after {LONGEST_S:g} s") from None
    await asyncio.sleep(1.0)  # all that has ended is gone


def sizes(program: Program) -> tuple[int, int]:
    """How often it waits, and how many requests it sends."""
    waits, strike = Waits(), Strike()
    play(program, waits, strike)
    return waits.count, len(strike.requests)


def cut_everywhere(program: Program, step: int = 1) -> list[str]:
    """Which calls were cut; raises `PromiseBroken`."""
    count, _ = sizes(program)
    cut = []
    for last in range(1, count + 1, step):
        waits = Waits(last)
        play(program, waits, Strike())
        cut.append(waits.cut)
    return cut


def strike_everywhere(program: Program, fate: Fate, step: int = 1) -> list[ApiKey]:
    """Which requests were struck; raises `PromiseBroken`."""
    _, count = sizes(program)
    struck = []
    for number in range(1, count + 1, step):
        strike = Strike(number, fate)
        play(program, Waits(), strike)
        struck.append(strike.requests[number - 1])
    return struck


def main() -> None:
    from tests.sim.sweeps.sending_programs import PROGRAMS

    parser = argparse.ArgumentParser(description="Disturbs everything that sends, everywhere.")
    parser.add_argument("--program", choices=PROGRAMS, action="append")
    arguments = parser.parse_args()
    logging.getLogger("onceflow").setLevel(logging.CRITICAL)
    broken = []
    for name in arguments.program or PROGRAMS:
        program = PROGRAMS[name]
        waits, requests = sizes(program)
        print(f"{name}: {waits} waits, {requests} requests", flush=True)
        plays = [(Waits(last), Strike()) for last in range(1, waits + 1)]
        plays += [(Waits(), Strike(n, fate)) for fate in Fate for n in range(1, requests + 1)]
        for each in plays:
            try:
                play(program, *each)
            except Exception as error:
                where = f"{each[0].cut or 'nothing'} was cut, {each[1].struck}"
                broken.append(f"{name}: {type(error).__name__}: {error} ({where})")
                print(f"BROKEN: {broken[-1]}", flush=True)
    if broken:
        sys.exit(f"{len(broken)} broken promises")


if __name__ == "__main__":
    main()
