"""Sessions that sleep: a process that is stopped for days, or away for weeks; brokers forget.

A session copies a topic, under somebody who starts it again whatever it ends with. It is stopped as
by SIGSTOP, killed, stopped in an orderly way, idle, or its whole machine sleeps: for hours, for
days, and for longer than the broker remembers groups, transactional ids and producers. Whenever it
is awake it must go on exactly once, or say that it cannot; then an operator looks at the output and
tells the group where to go on.

    python -m tests.sim.years.sessions [--seeds 20] [--seed 1]
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.ranges import read_range
from onceflow.client.errors.consumer import NoPosition
from onceflow.client.errors.requests import ClientError
from onceflow.client.net.address import BrokerAddress
from onceflow.client.net.cluster import Cluster
from onceflow.client.offsets import offset_ranges
from onceflow.client.session import session_work
from onceflow.client.session.errors import OffsetsForgotten, SessionForgotten
from onceflow.client.session.session import Session
from onceflow.testing.world import World, run
from onceflow.types import TopicPartition
from tests.sim.seed_campaign import try_seeds
from tests.sim.txn.history import Identity, Place, PromiseBroken
from tests.sim.years.clients import Client, make_batch
from tests.sim.years.machine import ADDRESS, DAY_MS, DAY_S, HOUR_MS, HOUR_S, Machine, rare_sweeps
from tests.sim.years.model import OFFSETS_KEPT_MS, Model

PARTITIONS: Final = 2
GROUP: Final = "copy"
AWAY_DAYS: Final = (0.05, 0.5, 2.0, 5.0, 6.9, 7.5, 10.0, 25.0)
CAUGHT_UP_S: Final = 12 * HOUR_S
"""Within that a session that is awake has done all there is to do, or has said why not."""
SETTINGS: Final[dict[str, Any]] = {
    "group_id": GROUP,
    "topics": ["in"],
    "max_poll_records": 5,
    # Rare, so that weeks are not spent on them.
    "session_timeout_ms": 12 * HOUR_MS,
    "heartbeat_interval_ms": 2 * HOUR_MS,
    "max_poll_interval_ms": 12 * HOUR_MS,
    "fetch_max_wait_ms": HOUR_MS,
    "request_timeout_ms": 3 * HOUR_MS,
    "metadata_max_age_ms": 12 * HOUR_MS,
    "transaction_timeout_ms": 30_000,
    "delivery_timeout_ms": 4 * HOUR_MS,
}


class Shape(NamedTuple):
    """How a session is set up, and for how long it is watched."""

    auto_offset_reset: str = "none"
    durability: str = "fsync"
    episodes: int = 14


class Told(NamedTuple):
    """What happened in a world."""

    did: Counter[str]
    errors: Counter[str]
    records: int


@contextmanager
def patient_polls() -> Iterator[None]:
    """An idle session looks around each hour, and not twice a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_work, "_A_WHILE_S", HOUR_S)
        yield


class Feeder(Client):
    """Writes what is to be copied; each record says where it is."""

    def __init__(self, machine: Machine, model: Model) -> None:
        super().__init__(machine, model, "feeder")
        self.written = [0] * PARTITIONS
        self._identity: Identity | None = None

    async def feed(self) -> None:
        identity = await self.init(None)
        for partition in range(PARTITIONS):
            for sequence in range(1 + self.rand.randrange(8)):
                value = b"%d" % self.written[partition]
                batch = make_batch(identity, sequence, [(b"k", value)], self.model.clocks.wall())
                code, offset = await self.produce(Place("in", partition), batch)
                if (code, offset) != ("NONE", self.written[partition]):
                    raise PromiseBroken(f"the input was not written: {code}, {offset}")
                self.written[partition] += 1


class Worker:
    """One process after the other that copies."""

    def __init__(self, machine: Machine, shape: Shape) -> None:
        self._machine = machine
        self._world = machine.world
        self._rand = machine.world.rand.fork("worker")
        self._shape = shape
        self._lives = 0
        self.errors: Counter[str] = Counter()
        self.error: ClientError | None = None
        """Why it has ended."""
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def process(self) -> str:
        return f"worker-{self._lives}"

    def start(self) -> None:
        self._lives += 1
        self.error = self._session = None
        self._task = self._world.loop.spawn(self.process, self._live(self.process))

    async def _live(self, host: str) -> None:
        session = Session(
            str(BrokerAddress(*ADDRESS)),
            net=self._world.net.host(host),
            clock=self._world.clock,
            rand=self._world.rand.fork(host),
            auto_offset_reset=self._shape.auto_offset_reset,
            **SETTINGS,
        )
        self._session = session
        try:
            async with session:
                async for batch, txn in session:
                    for record in batch:
                        await txn.send("out", record.value, partition=record.partition)
                    await asyncio.sleep(self._rand.uniform(0.0, 2.0))
        except ClientError as error:
            self.error = error
            self.errors[type(error).__name__] += 1

    async def stop(self) -> None:
        while self._session is None and not self.is_over:
            await asyncio.sleep(0.01)
        if self._session is not None and self._task is not None:
            self._session.stop()
            await self._task

    def kill(self) -> None:
        self._world.net.kill(self.process)
        self._world.loop.kill_process(self.process)

    @property
    def is_reading(self) -> bool:
        """It has been told where its group is."""
        session = self._session
        return session is not None and bool(session._consumer._work.fetcher.assigned)

    @property
    def is_over(self) -> bool:
        return self._task is None or self._task.done()


class Sleep:
    """One world."""

    def __init__(self, world: World, shape: Shape) -> None:
        self._world = world
        self._shape = shape
        self._rand = world.rand.fork("sleep")
        self.machine = Machine(world, shape.durability)
        self._feeder = Feeder(self.machine, Model(self.machine.clocks))
        self._worker = Worker(self.machine, shape)
        self._stopped_days = 0.0
        """For how long the present process was stopped, and perhaps has not looked around since."""

    async def main(self) -> Told:
        await self.machine.start()
        async with self._admin() as admin:
            for name in ("in", "out"):
                keep = {"retention.ms": "-1"}
                await admin.create_topic(name, partitions=PARTITIONS, configs=keep)
        await self._set_offsets([0] * PARTITIONS)
        self._worker.start()
        for number in range(self._shape.episodes):
            try:
                await self._episode()
            except PromiseBroken as error:
                before = "\n  ".join(self.machine.diary)
                raise PromiseBroken(
                    f"episode {number}: {error}\nBefore that:\n  {before}"
                ) from error
        await self._worker.stop()
        await self.machine.stop()
        return Told(self.machine.did, self._worker.errors, sum(self._feeder.written))

    async def _episode(self) -> None:
        if self._rand.randrange(4):
            await self._feeder.feed()
            # Sometimes it is caught in the midst of its work.
            await asyncio.sleep(self._rand.uniform(0.0, (0.2, 20.0)[self._rand.randrange(2)]))
        days = AWAY_DAYS[self._rand.randrange(len(AWAY_DAYS))]
        fates = (self._be_stopped, self._be_stopped, self._be_killed, self._leave, self._idle)
        fate = (*fates, self._close_lid, self._lose_broker)[self._rand.randrange(7)]
        self.machine.note(f"{fate.__name__[1:]} for {days} days")
        await fate(days)
        if self._rand.randrange(4):
            await self._feeder.feed()
        await self._catch_up()
        self.machine.tidy()

    # --- ways to be away ------------------------------------------------------------------------

    async def _be_stopped(self, days: float) -> None:
        self._world.loop.stop_process(self._worker.process)
        await self._pass(days)
        self._world.loop.continue_process(self._worker.process)
        self._stopped_days += days

    async def _be_killed(self, days: float) -> None:
        self._worker.kill()
        await self._pass(days)
        await self._start_again(days)

    async def _leave(self, days: float) -> None:
        await self._worker.stop()
        await self._pass(days)
        await self._start_again(days)

    async def _start_again(self, days: float) -> None:
        """A new process has no memory of its own: who lets it begin at the earliest record has to
        tell the group where it was, once that may be forgotten."""
        await asyncio.sleep(60.0)  # what a killed one had open is over
        days, self._stopped_days = days + self._stopped_days, 0.0
        if self._shape.auto_offset_reset == "earliest" and days * DAY_MS > OFFSETS_KEPT_MS - DAY_MS:
            # A group with members takes offsets from nobody else: one that was killed is in it yet.
            await asyncio.sleep(SETTINGS["session_timeout_ms"] / 1000)
            await self._set_offsets(await self._copied())
        self._worker.start()
        while not (self._worker.is_reading or self._worker.is_over):
            await asyncio.sleep(1.0)

    async def _idle(self, days: float) -> None:
        await self._pass(days)

    async def _close_lid(self, days: float) -> None:
        self.machine.sleep(days * DAY_S)
        await asyncio.sleep(HOUR_S)

    async def _lose_broker(self, days: float) -> None:
        self.machine.cut_power() if self._shape.durability == "fsync" else self.machine.kill()
        await asyncio.sleep(self._rand.uniform(0.5, 60.0))
        await self.machine.start()
        await self._pass(days)

    async def _pass(self, days: float) -> None:
        """Days, in which others write."""
        await asyncio.sleep(days * DAY_S / 2)
        if self._rand.randrange(3) == 0:
            await self._feeder.feed()
        await asyncio.sleep(days * DAY_S / 2)

    # --- and then -------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """All of the input is in the output once, or the session has said that it cannot go on."""
        until = self.machine.clocks.now() + CAUGHT_UP_S
        while (copied := await self._copied()) != self._feeder.written:
            if self._worker.is_over:
                await self._help(copied)
            if self.machine.clocks.now() > until:
                raise PromiseBroken(f"the session stands at {copied}, of {self._feeder.written}")
            await asyncio.sleep(0.1 * HOUR_S)
        if self._worker.is_over:
            await self._help(copied)

    async def _help(self, copied: list[int]) -> None:
        """What somebody would do who reads the error."""
        error = self._worker.error
        self.machine.note(f"ended by {error!r}")
        if isinstance(error, NoPosition | OffsetsForgotten | SessionForgotten):
            await self._set_offsets(copied)
        self._worker.start()

    async def _copied(self) -> list[int]:
        """How much of each partition is in the output; raises when something is there twice, or
        out of order."""
        places = [TopicPartition("out", number) for number in range(PARTITIONS)]
        found = []
        async with self._cluster() as cluster:
            ends = await offset_ranges(cluster, places, read_committed=True)
            for place in places:
                values: list[Any] = []
                bounds = ends[place]
                async for table in read_range(cluster, place, bounds.earliest, bounds.latest):
                    values += table.column("value").to_pylist()
                if values != [b"%d" % number for number in range(len(values))]:
                    raise PromiseBroken(f"{place} has {[int(each) for each in values]}")
                found.append(len(values))
        return found

    async def _set_offsets(self, offsets: list[int]) -> None:
        async with self._admin() as admin:
            places = {TopicPartition("in", number): at for number, at in enumerate(offsets)}
            await admin.commit_offsets(GROUP, places)

    def _admin(self) -> Admin:
        return Admin(
            str(BrokerAddress(*ADDRESS)),
            net=self._world.net.host("admin"),
            clock=self._world.clock,
            rand=self._world.rand.fork("admin"),
        )

    def _cluster(self) -> Cluster:
        return Cluster([BrokerAddress(*ADDRESS)], net=self._world.net.host("judge"))


def workload(shape: Shape) -> Callable[[World], Awaitable[Told]]:
    """What to run in a world."""

    async def main(world: World) -> Told:
        return await Sleep(world, shape).main()

    return main


def live(seed: int, shape: Shape) -> tuple[Told, str]:
    with rare_sweeps(), patient_polls():
        return run(
            seed,
            workload(shape),
            max_steps=3_000_000 * shape.episodes,
            max_virtual_seconds=60 * shape.episodes * DAY_S,
        )


def _shape_of(seed: int) -> Shape:
    return Shape(("none", "earliest")[seed // 2 % 2], ("fsync", "os")[seed % 2])


if __name__ == "__main__":
    try_seeds("Sessions that sleep.", _shape_of, live)
