"""Consumers whose callers go away at every await, and of whose requests each is late, doubled or
failed, in simulated worlds; what they handed out and committed is held against the log.

`python -m tests.sim.sweeps.consumers` strikes every request; the tests strike some of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.consumer import Consumer, RebalanceListener
from onceflow.client.consumer.fetched import Record
from onceflow.client.errors.requests import ClientError
from onceflow.client.net.cluster import Cluster
from onceflow.client.net.connection import BrokerConnection
from onceflow.client.net.pool import ConnectionLane
from onceflow.client.producer.producer import Producer
from onceflow.testing.world import World, run
from onceflow.types import TopicPartition
from tests.sim.sweeps.cutting import When, cut
from tests.sim.sweeps.sending import Waits
from tests.unit.broker.broker_under_test import Running, simulated_broker
from tests.unit.client.consumer.simulated_readers import ADVERTISED
from tests.unit.client.request_taps import Doubled, Failed, Fate, Late, Request, RequestTap

PARTITIONS: Final = 2
ROWS: Final = 12
"""Of each partition."""
PLACES: Final = [TopicPartition("in", number) for number in range(PARTITIONS)]
SETTINGS: Final[dict[str, Any]] = {
    "auto_offset_reset": "earliest",
    "max_poll_records": 5,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 500,
    "max_poll_interval_ms": 15_000,
    "request_timeout_ms": 10_000,
    "default_api_timeout_ms": 30_000,
    "fetch_max_wait_ms": 100,
}
LONGEST_S: Final = 300.0
FATES: Final[dict[str, Fate]] = {
    "late": Late(8.0),  # than a session lasts
    "later": Late(25.0),  # than a request or a rebalance may take
    "doubled": Doubled(7.0),
    "lost": Failed(arrives=False),
    "unanswered": Failed(arrives=True),
}


class Broken(AssertionError):
    """A promise was."""


class Scene:
    """A broker with rows, and whoever reads them."""

    def __init__(self, world: World, running: Running) -> None:
        self.world = world
        self.running = running
        self.bootstrap = f"{running.address[0]}:{running.address[1]}"

    def consumer(self, host: str, group: str, **more: Any) -> Consumer:
        return Consumer(
            self.bootstrap,
            net=self.world.net.host(host),
            rand=self.world.rand.fork(host),
            group_id=group,
            **{**SETTINGS, **more},
        )

    async def fill(self) -> None:
        async with (
            Admin(self.bootstrap, net=self.running.net) as admin,
            Producer(self.bootstrap, net=self.running.net, clock=self.world.clock) as producer,
        ):
            await admin.create_topic("in", partitions=PARTITIONS)
            for number in range(ROWS * PARTITIONS):
                await producer.send("in", b"%d" % number, partition=number % PARTITIONS)

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        async with Admin(self.bootstrap, net=self.running.net) as admin:
            return await admin.committed_offsets(group)

    def has_connections(self, host: str) -> bool:
        ends = (end.host for each in self.world.net.connections for end in each.addresses.values())
        return host in ends


@contextmanager
def leaders_apart() -> Iterator[None]:
    """What leaders are asked has a connection of its own, as if they were no coordinators: else an
    answer that is held back holds back all that would show that it is out of date."""
    honest = Cluster.broker

    async def broker(
        cluster: Cluster, node_id: int, *, lane: ConnectionLane = ConnectionLane.SECONDARY
    ) -> BrokerConnection:
        return await honest(cluster, node_id, lane=lane)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "broker", broker)
        yield


def play(program: Callable[[Scene], Awaitable[None]], seed: int = 1) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(
            world, advertise=ADVERTISED, group_initial_rebalance_delay_ms=0
        ) as running:
            scene = Scene(world, running)
            await scene.fill()
            await program(scene)

    run(seed, main)


# --- callers that go away ------------------------------------------------------------------------

Work = Callable[[Consumer], Awaitable[Any]]
TAKES: Final[dict[str, Work]] = {
    "poll": lambda consumer: consumer.poll(2),
    "poll_by_partition": lambda consumer: consumer.poll_by_partition(2),
    "poll_table": lambda consumer: consumer.poll_table(2, max_rows=5),
    "anext": anext,
}
OTHERS: Final[dict[str, Work]] = {
    "start": lambda consumer: consumer.start(),
    "assign": lambda consumer: consumer.assign(["in"]),
    "commit": lambda consumer: consumer.commit(),
    "committed": lambda consumer: consumer.committed(),
    "position": lambda consumer: consumer.position(PLACES[0]),
    "lag": lambda consumer: consumer.lag(exact=True),
    "rewind": lambda consumer: consumer.rewind(),
    "seek": lambda consumer: consumer.seek(PLACES[0], 3),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(),
    "seek_to_end": lambda consumer: consumer.seek_to_end(),
    "seek_to_timestamp": lambda consumer: consumer.seek_to_timestamp(0),
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "close": lambda consumer: consumer.close(),
}
MOVES: Final[dict[str, dict[TopicPartition, int]]] = {
    "rewind": dict.fromkeys(PLACES, 0),  # nothing is committed yet
    "seek": {PLACES[0]: 3},
    "seek_to_beginning": dict.fromkeys(PLACES, 0),
    "seek_to_end": dict.fromkeys(PLACES, ROWS),
    "seek_to_timestamp": dict.fromkeys(PLACES, 0),
}
"""Where they lead to."""


def places_of(found: Any) -> list[tuple[int, int]]:
    """Partition and offset of all that was handed out."""
    if found is None or isinstance(found, BaseException):
        return []
    if isinstance(found, Record):
        return [(found.partition, found.offset)]
    if isinstance(found, dict):
        return [place for records in found.values() for place in places_of(records)]
    if isinstance(found, list):
        return [(each.partition, each.offset) for each in found]
    columns = (found.column(name).to_pylist() for name in ("partition", "offset"))
    return list(zip(*columns, strict=True))


async def read_rest(consumer: Consumer, received: list[tuple[int, int]]) -> None:
    async with asyncio.timeout(LONGEST_S):
        while len(set(received)) < ROWS * PARTITIONS:
            received += places_of(await consumer.poll(1))


def check_exact(received: Collection[tuple[int, int]], where: str) -> None:
    """Each row once, in order within its partition."""
    for number in range(PARTITIONS):
        offsets = [offset for partition, offset in received if partition == number]
        if offsets != list(range(ROWS)):
            raise Broken(f"{where}: partition {number} was handed out as {offsets}")


async def cut_once(scene: Scene, name: str, work: Work, at: int, when: When) -> bool:
    """One consumer in a group of its own, whose `work` is cut; whether it was."""
    where = f"{name} cut at {at}, {when.value}"
    group = host = f"consumer-{name}-{at}-{when.name}"
    consumer = scene.consumer(host, group)
    tasks_before = asyncio.all_tasks()
    received: list[tuple[int, int]] = []
    is_cut = await _start(consumer, at if name == "start" else 0, when)
    if name == "assign":
        is_cut, _ = await cut(work(consumer), at, when)
        await consumer.assign(["in"])
    else:
        consumer.subscribe(["in"])
    if name in TAKES:
        # From the first poll on: joining, finding out where to begin, and fetching.
        is_cut, outcome = await cut(work(consumer), at, when)
        received += places_of(outcome)
    elif name not in ("start", "assign"):
        # One by one, so that there are some left to be given back; or all that came.
        take = TAKES["anext" if name in MOVES or at % 2 else "poll"]
        while len(received) < 8:
            received += places_of(await take(consumer))
        is_cut, outcome = await cut(work(consumer), at, when)
    if name == "unsubscribe":
        consumer.subscribe(["in"])
    if name in MOVES:
        await _check_moved(consumer, name, received, where, is_cut=is_cut)
        for place in PLACES:
            await consumer.seek(place, _behind(received, place))
    if name != "close":
        await read_rest(consumer, received)
        await consumer.close()
        check_exact(received, where)
    await _check_closed(scene, group, received, where, is_polite=name != "close")
    left = {each for each in asyncio.all_tasks() - tasks_before if not each.done()}
    if left or scene.has_connections(host):
        raise Broken(f"{where}: closed, and it goes on: {left}")
    return is_cut


async def _start(consumer: Consumer, at: int, when: When) -> bool:
    """Cut, unless `at` is 0, and then called again; whether it was cut."""
    is_cut, outcome = await cut(consumer.start(), at, when)
    if outcome is not None:
        await asyncio.sleep(0.1)
        await consumer.start()
    return is_cut and at > 0


async def _check_moved(
    consumer: Consumer, name: str, received: list[tuple[int, int]], where: str, *, is_cut: bool
) -> None:
    """It is where it was to go, or if it was cut perhaps where it had been."""
    for place in PLACES:
        behind, found = _behind(received, place), await consumer.position(place)
        there = MOVES[name].get(place, behind)
        if found != there and not (is_cut and found == behind):
            raise Broken(f"{where}: {place} is at {found}, not at {there}")


def _behind(received: list[tuple[int, int]], place: TopicPartition) -> int:
    offsets = (offset for partition, offset in received if partition == place.partition)
    return max(offsets, default=-1) + 1


async def _check_closed(
    scene: Scene, group: str, received: list[tuple[int, int]], where: str, *, is_polite: bool
) -> None:
    await asyncio.sleep(2)
    committed = await scene.committed(group)
    for place in PLACES:
        behind = _behind(received, place)
        found = committed.get(place, 0)
        if found > behind or (is_polite and found != behind):
            raise Broken(f"{where}: {place} was handed out to {behind}, and {found} is committed")


def sweep_cuts(name: str, when: When, *, most: int = 200, step: int = 1) -> int:
    """Cuts one kind of call at every await, or at every `step`-th; how many there are."""
    work = {**TAKES, **OTHERS}[name]
    last = 0

    async def program(scene: Scene) -> None:
        nonlocal last
        for at in range(1, most, step):
            if not await cut_once(scene, name, work, at, when):
                break
            last = at

    play(program)
    return last


# --- requests that are late, doubled, or fail ----------------------------------------------------


class Begins(RebalanceListener):
    """Notes what is committed of a partition when it is given to a member."""

    def __init__(self, scene: Scene, group: str) -> None:
        self._scene = scene
        self._group = group
        self.at: dict[TopicPartition, int] = {}

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        committed = await self._scene.committed(self._group)
        self.at.update({each: committed.get(each, 0) for each in partitions})

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        await asyncio.sleep(0.01)
        for each in partitions:
            self.at.pop(each, None)


class Member:
    """Polls, works, commits, and goes on after whatever is raised; one of its polls may be cut."""

    def __init__(self, scene: Scene, host: str, group: str, strategy: str, waits: Waits) -> None:
        self.received: set[tuple[int, int]] = set()
        self._waits = waits
        self.consumer = scene.consumer(
            host, group, enable_auto_commit=False, partition_assignment_strategy=strategy
        )
        self.begins = Begins(scene, group)

    async def live(self) -> None:
        async with self.consumer:
            self.consumer.subscribe(["in"], self.begins)
            while True:
                with suppress(ClientError):
                    await self._poll()

    async def _poll(self) -> None:
        _, records = await self._waits.call("poll", self.consumer.poll(0.5))
        for each in records or ():
            begin = self.begins.at.get(TopicPartition(each.topic, each.partition))
            if begin is None:
                raise Broken(f"{each.partition} was read, and was never given to this member")
            if each.offset < begin:
                raise Broken(f"{each.partition}: {each.offset} was read, {begin} was committed")
            self.received.add((each.partition, each.offset))
        await asyncio.sleep(0.2)
        await self.consumer.commit()


async def two_members(
    scene: Scene, strategy: str, judge: Callable[[Request], Fate], waits: Waits
) -> int:
    """One reads, another one comes and goes, and every row is done by one of them; how many
    requests they made."""
    group = "g"
    tap = RequestTap(scene.world.loop, judge)
    scene.world.net.tap(tap)
    loop = asyncio.get_running_loop()
    one = Member(scene, "consumer-one", group, strategy, waits)
    other = Member(scene, "consumer-other", group, strategy, Waits())
    tasks = [loop.create_task(one.live())]
    await asyncio.sleep(1.0)
    guest = loop.create_task(other.live())
    await asyncio.sleep(3.0)
    if waits.is_cutting and not other.consumer.assignment:
        raise Broken("the other one was given nothing, though nobody is in trouble")
    guest.cancel()
    everything = {(place.partition, offset) for place in PLACES for offset in range(ROWS)}
    async with asyncio.timeout(LONGEST_S):
        while sum((await scene.committed(group)).values()) < ROWS * PARTITIONS:
            for task in (*tasks, guest):
                if task.done() and not task.cancelled():
                    task.result()
            committed = await scene.committed(group)
            received = one.received | other.received
            for place, offset in committed.items():
                done = {(place.partition, number) for number in range(offset)}
                if not done <= received:
                    raise Broken(f"{place}: {offset} is committed, and was not handed out")
            await asyncio.sleep(0.5)
    if one.received | other.received != everything:
        raise Broken("rows are missing")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, guest, return_exceptions=True)
    scene.world.net.tap(None)
    return len(tap.seen)


def strike(strategy: str, number: int | None, fate: Fate, waits: Waits | None = None) -> int:
    """One run in which one request, or none, meets with its fate; how many there are."""
    count = 0

    async def program(scene: Scene) -> None:
        nonlocal count
        count = await two_members(
            scene,
            strategy,
            lambda request: fate if request.number == number else None,
            waits or Waits(),
        )

    with leaders_apart():
        play(program)
    return count


def sweep_requests(strategy: str, fate: Fate, numbers: Iterable[int]) -> None:
    for number in numbers:
        try:
            strike(strategy, number, fate)
        except BaseException as error:
            error.add_note(f"request {number} of {strategy} was {fate}")
            raise


def sweep_polls(strategy: str, *, step: int = 1) -> int:
    """Cuts the polls of a member at every wait, or at every `step`-th, while another one comes and
    goes; how many there are."""
    whole = Waits()
    strike(strategy, None, None, whole)
    for last in range(1, whole.count + 1, step):
        try:
            strike(strategy, None, None, Waits(last))
        except BaseException as error:
            error.add_note(f"a poll of {strategy} was cut at {last}")
            raise
    return whole.count


def main() -> None:
    """All of it."""
    for name in {**TAKES, **OTHERS}:
        for when in When:
            print(name, when.name, sweep_cuts(name, when), flush=True)
    for strategy in ("range", "cooperative-sticky"):
        print(strategy, "polls", sweep_polls(strategy), flush=True)
        count = strike(strategy, None, None)
        for word, fate in FATES.items():
            sweep_requests(strategy, fate, range(count))
            print(strategy, word, count, flush=True)


if __name__ == "__main__":
    main()
