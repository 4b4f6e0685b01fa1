"""Two sessions that share a topic, one of which comes and goes, in simulated worlds: each of their
requests is late, doubled or fails, once, and the other one is cancelled at each of its awaits; what
they have committed is held against the log.

`python -m tests.sim.sweeps.sessions` does all of it; the tests some of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from onceflow.client.address import BrokerAddress
from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.ranges import read_range
from onceflow.client.errors.requests import ClientError
from onceflow.client.net.cluster import Cluster
from onceflow.client.offsets import offset_ranges
from onceflow.client.session.session import Session
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from tests.sim.sweeps.consumers import (
    FATES,
    LONGEST_S,
    PARTITIONS,
    ROWS,
    Broken,
    Scene,
    leaders_apart,
    play,
)
from tests.sim.sweeps.cutting import When, cut
from tests.unit.client.request_taps import Doubled, Fate, Request, RequestTap

GROUP: Final = "copying"
ONE: Final = "session-one"
OTHER: Final = "session-other"
SETTINGS: Final[dict[str, Any]] = {
    "group_id": GROUP,
    "topics": ["in"],
    "max_poll_records": 3,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 500,
    "max_poll_interval_ms": 15_000,
    "request_timeout_ms": 10_000,
    "delivery_timeout_ms": 12_000,
    "transaction_timeout_ms": 15_000,
    "fetch_max_wait_ms": 100,
}
WORK_S: Final = 0.2
"""On one batch."""
AHEAD_S: Final = 0.7
"""One is there so much earlier than the other."""
STAY_S: Final = 4.0
"""The other one stays so long."""


Way = Mapping[str, Any]
"""How the two are set up."""
HASTY: Final[Way] = {
    "request_timeout_ms": 2_000,
    "delivery_timeout_ms": 4_000,
    "session_timeout_ms": 30_000,
}
"""They give up on a transaction long before the group gives up on them."""
SHARED: Final[Way] = {"commit_interval_ms": 1_500, "linger_ms": 1_000}
"""Their transactions have several batches, and most is sent when they end."""
EAGER: Final[Way] = {"partition_assignment_strategy": "range"}
COOPERATIVE: Final[Way] = {"partition_assignment_strategy": "cooperative-sticky"}
WAYS: Final[dict[str, Way]] = {
    "eager": EAGER,
    "eager, shared": {**EAGER, **SHARED},
    "eager, hasty": {**EAGER, **HASTY},
    "cooperative": COOPERATIVE,
    "cooperative, shared": {**COOPERATIVE, **SHARED},
}


class Away(NamedTuple):
    """Whoever has sent it is cut off for so long, from that moment on."""

    seconds: float


Plan = Callable[[Request], Fate | Away]
TROUBLES: Final[dict[str, Fate | Away]] = {**FATES, "away": Away(9.0)}


class Cut(NamedTuple):
    """At which of its awaits the first session is cancelled."""

    at: int
    when: When


class Copier:
    """Copies each record to the partition of the same number, and begins again after whatever a
    session has ended with, as a supervisor would."""

    def __init__(self, scene: Scene, host: str, way: Way, cut: Cut | None = None) -> None:
        self._scene = scene
        self._host = host
        self._way = way
        self._cut = cut
        self.was_cut = False
        self._session: Session | None = None
        self._is_over = False
        self._task = asyncio.get_running_loop().create_task(self._live())

    async def _live(self) -> None:
        if self._cut is not None:
            self.was_cut, outcome = await cut(self._copy(), *self._cut)
            if not isinstance(outcome, ClientError | asyncio.CancelledError | None):
                raise outcome
        while not self._is_over:
            try:
                await self._copy()
            except ClientError:
                await asyncio.sleep(1)

    async def _copy(self) -> None:
        self._session = session = Session(
            self._scene.bootstrap,
            net=self._scene.world.net.host(self._host),
            clock=self._scene.world.clock,
            rand=self._scene.world.rand.fork(self._host),
            instance=self._host,
            **{**SETTINGS, **self._way},
        )
        async with session:
            async for batch, txn in session:
                for record in batch:
                    await txn.send("out", record.value, partition=record.partition)
                await asyncio.sleep(WORK_S)

    def check(self) -> None:
        """Raises what is no error of a client."""
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """In peace."""
        self._is_over = True
        if self._session is not None:
            self._session.stop()
        await self._task


async def copied(scene: Scene) -> dict[int, list[int]]:
    """What readers of committed records see of the copy, as offsets of the original."""
    places = [TopicPartition("out", number) for number in range(PARTITIONS)]
    found: dict[int, list[int]] = {}
    async with Cluster([BrokerAddress(*scene.running.address)], net=scene.running.net) as cluster:
        ends = await offset_ranges(cluster, places, read_committed=True)
        for place in places:
            first, last = ends[place].earliest, ends[place].latest
            values: list[Any] = []
            async for table in read_range(cluster, place, first, last):
                values += table.column("value").to_pylist()
            found[place.partition] = [int(each) // PARTITIONS for each in values]
    return found


def _fate(scene: Scene, plan: Plan, request: Request) -> Fate:
    fate = plan(request)
    if not isinstance(fate, Away):
        return fate
    net, broker = scene.world.net, scene.running.address[0]
    net.partition(request.host, broker)
    scene.world.loop.call_later(fate.seconds, net.join, request.host, broker)
    return None


async def two_sessions(
    scene: Scene, way: Way, plan: Plan, cut: Cut | None = None
) -> tuple[int, bool]:
    """Raises `Broken` unless every row is there once, and in order. How many requests they made,
    and whether one was cut."""
    async with Admin(scene.bootstrap, net=scene.running.net) as admin:
        await admin.create_topic("out", partitions=PARTITIONS)
    tap = RequestTap(scene.world.loop, partial(_fate, scene, plan), prefix="session")
    scene.world.net.tap(tap)
    one = Copier(scene, ONE, way, cut)
    await asyncio.sleep(AHEAD_S)
    other = Copier(scene, OTHER, way)
    await asyncio.sleep(STAY_S)
    try:
        async with asyncio.timeout(LONGEST_S):
            await other.stop()
            while sum((await scene.committed(GROUP)).values()) < ROWS * PARTITIONS:
                one.check()
                await asyncio.sleep(1)
            count = len(tap.seen)
            await one.stop()
    except TimeoutError:
        raise Broken(f"not done after {LONGEST_S:g} s") from None
    scene.world.net.tap(None)
    await asyncio.sleep(SETTINGS["transaction_timeout_ms"] / 1000 + 15)
    found = await copied(scene)
    for number, offsets in found.items():
        if offsets != list(range(ROWS)):
            raise Broken(f"partition {number} was copied as {offsets}")
    committed = await scene.committed(GROUP)
    if set(committed.values()) != {ROWS}:
        raise Broken(f"the group is at {committed}")
    return count, one.was_cut


def copy_by_two(way: Way, plan: Plan, cut: Cut | None = None) -> tuple[int, bool]:
    """One run."""
    found = 0, False

    async def program(scene: Scene) -> None:
        nonlocal found
        found = await two_sessions(scene, way, plan, cut)

    with leaders_apart():
        play(program)
    return found


def nothing_happens(_: Request) -> Fate:
    return None


def to_one(number: int, fate: Fate | Away) -> Plan:
    """Not to InitProducerId, of which a copy is another session of that name."""

    def plan(request: Request) -> Fate | Away:
        is_safe = request.key is not ApiKey.INIT_PRODUCER_ID or not isinstance(fate, Doubled)
        return fate if request.number == number and is_safe else None

    return plan


def sweep_sessions(way: Way, fate: Fate | Away, numbers: Iterable[int]) -> None:
    for number in numbers:
        try:
            copy_by_two(way, to_one(number, fate))
        except BaseException as error:
            error.add_note(f"request {number} of {way} was {fate}")
            raise


def sweep_session_cuts(way: Way, when: When, *, step: int = 1, most: int = 1_000) -> int:
    """Cancels the first session at every await, or at every `step`-th; how many there are."""
    last = 0
    for at in range(1, most, step):
        try:
            _, was_cut = copy_by_two(way, nothing_happens, Cut(at, when))
        except BaseException as error:
            error.add_note(f"a session of {way} was cut at {at}, {when.value}")
            raise
        if not was_cut:
            break
        last = at
    return last


def main() -> None:
    """All of it."""
    logging.getLogger("onceflow").setLevel(logging.CRITICAL)
    for name, way in WAYS.items():
        for when in When:
            print(name, when.name, sweep_session_cuts(way, when), flush=True)
        count, _ = copy_by_two(way, nothing_happens)
        for word, fate in TROUBLES.items():
            sweep_sessions(way, fate, range(count))
            print(name, word, count, flush=True)


if __name__ == "__main__":
    main()
