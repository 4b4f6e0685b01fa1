"""A simulated world and the way to run one: `run(seed, main)` gives a result and a trace hash.

The seed decides everything. Equal seeds and equal programs give equal hashes, in any process;
a difference means that the program took something from outside its four doors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from onceflow.testing.background import SimBackground
from onceflow.testing.clock import SimClock
from onceflow.testing.disk import SimDisk
from onceflow.testing.faults import NetFaults
from onceflow.testing.loop import MAX_STEPS, MAX_VIRTUAL_SECONDS, SimLoop, SimulationError
from onceflow.testing.net import SimNet
from onceflow.testing.rand import SimRand

T = TypeVar("T")
_SLOWEST_STEP_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class World:
    """What a simulated program is given; `rand` is for forking a stream of one's own."""

    loop: SimLoop
    clock: SimClock
    rand: SimRand
    net: SimNet
    disk: SimDisk
    background: SimBackground


def run(
    seed: int,
    main: Callable[[World], Awaitable[T]],
    *,
    faults: NetFaults | None = None,
    max_steps: int = MAX_STEPS,
    max_virtual_seconds: float = MAX_VIRTUAL_SECONDS,
    trace_sink: Callable[[str], None] | None = None,
) -> tuple[T, str]:
    """Run `main` in a world of this seed; returns its result and the hash of the whole trace.

    What `main` leaves running is cancelled, after the hash is taken. `trace_sink` gets each
    line of the trace, to find where two runs part.
    """
    rand = SimRand(seed)
    loop = SimLoop(
        rand.fork("loop"),
        max_steps=max_steps,
        max_virtual_seconds=max_virtual_seconds,
        trace_sink=trace_sink,
    )
    return _until_end(loop, lambda: loop.run_until_complete(main(_world(loop, rand, faults))))


def run_blocking(
    seed: int,
    main: Callable[[World], T],
    *,
    max_steps: int = MAX_STEPS,
    max_virtual_seconds: float = MAX_VIRTUAL_SECONDS,
) -> tuple[T, str]:
    """As `run`, for a program that is no coroutine: it lets time pass in the world by
    `world.loop.run_until_complete`, whenever it waits for something."""
    rand = SimRand(seed)
    loop = SimLoop(rand.fork("loop"), max_steps=max_steps, max_virtual_seconds=max_virtual_seconds)
    return _until_end(loop, lambda: main(_world(loop, rand, None)))


def _until_end(loop: SimLoop, work: Callable[[], T]) -> tuple[T, str]:
    try:
        result = work()
        trace_hash = loop.trace_hash()
    except BaseException:
        # The failure that stopped the run matters, not what else shows while it unwinds.
        with contextlib.suppress(SimulationError):
            loop.shutdown()
        raise
    loop.shutdown()
    return result, trace_hash


def _world(loop: SimLoop, rand: SimRand, faults: NetFaults | None) -> World:
    disk = SimDisk()
    disk.watch = lambda op: loop.note("disk", repr(op).encode())
    delays = rand.fork("disk delays")
    background = SimBackground(
        rand.fork("background"),
        lambda step: loop.call_later(delays.uniform(0, _SLOWEST_STEP_SECONDS), step),
    )
    net = SimNet(loop, rand.fork("net"), faults)
    return World(loop, SimClock(loop), rand.fork("world"), net, disk, background)
