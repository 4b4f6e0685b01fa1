"""One soak: a broker in a process of its own, mixed load on it, looks at it, and a verdict."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from onceflow.client.admin.admin import Admin
from tests.soak import confluent_clients, own_clients, strangers
from tests.soak.broker_process import BrokerProcess
from tests.soak.flatness import Trend, growing, trend
from tests.soak.samples import Sample, look, series_of
from tests.soak.scale import Scale
from tests.soak.world import (
    ABANDONED,
    COPIES,
    PARTITIONS,
    PAYMENTS,
    STATE,
    UNREAD,
    VISITS,
    World,
)

SETTLE_SECONDS = 60.0


class Stuck(AssertionError):
    """Some did not end when they were told to."""


class Outcome(NamedTuple):
    """What a soak has shown."""

    samples: list[Sample]
    growing: dict[str, Trend]
    problems: list[str]
    """With the records: lost, doubled, aborted and yet seen."""
    counts: Counter[str]
    log: list[str]

    @property
    def is_good(self) -> bool:
        return not self.growing and not self.problems


def soak(
    directory: Path,
    seconds: float,
    scale: Scale,
    *,
    durability: str = "fsync",
    seed: int = 1,
    leaks: Sequence[str] = (),
    tell: Callable[[Sample], None] = lambda _: None,
) -> Outcome:
    """Runs for so long, and a little longer until all is settled."""
    settings = {**scale.settings, "durability": durability}
    with BrokerProcess(directory, settings, census_s=scale.sample_s, leaks=leaks) as broker:
        samples: list[Sample] = []

        async def look_on() -> None:
            began = monotonic()
            while True:
                await asyncio.sleep(scale.sample_s)
                broker.check()
                at = monotonic() - began
                samples.append(look(broker.pid, broker.data_dir, broker.census, at))
                tell(samples[-1])

        problems, counts = asyncio.run(_run(broker.bootstrap, seconds, scale, seed, look_on))
    problems += broker.complaints
    grown = growing(series_of(samples), scale.bound_of)
    return Outcome(samples, grown, problems, counts, [line.rstrip() for line in broker.lines])


async def _run(
    bootstrap: str,
    seconds: float,
    scale: Scale,
    seed: int,
    look_on: Callable[[], Coroutine[Any, Any, None]],
) -> tuple[list[str], Counter[str]]:
    async with Admin(bootstrap) as admin:
        world = World(bootstrap, admin, scale, seed)
        await _make_topics(world)
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(each) for each in _writers(world)]
            readers = [group.create_task(each) for each in _readers(world)]
            looking = group.create_task(look_on())
            await asyncio.sleep(seconds)
            looking.cancel()
            world.writers_stop.set()
            await _end(writers)
            await _settle(world)
            world.readers_stop.set()
            await _end(readers)
        problems = world.ledger.problems() + await own_clients.state_problems(world)
        return problems, world.counts + world.ledger.counts


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """They have been told to stop; who waits for something that never comes is a finding too."""
    _, pending = await asyncio.wait(tasks, timeout=SETTLE_SECONDS)
    if pending:
        raise Stuck("; ".join(str(each) for each in pending))


async def _make_topics(world: World) -> None:
    create = world.admin.create_topic
    for name in (PAYMENTS, COPIES):  # what was read is deleted by who has read it
        await create(name, partitions=PARTITIONS, configs={"retention.ms": "-1"})
    await create(UNREAD, partitions=2)
    await create(VISITS, partitions=2)
    await create(ABANDONED, partitions=1)
    await create(STATE, partitions=1, configs={"cleanup.policy": "compact"})


def _writers(world: World) -> list[Coroutine[Any, Any, None]]:
    return [
        own_clients.pay(world, "payer-1"),
        own_clients.pay(world, "payer-2"),
        own_clients.visit(world),
        own_clients.join(world, "group"),
        own_clients.make_topics(world),
        own_clients.keep_state(world),
        own_clients.read_slowly(world),
        confluent_clients.pay_as_many(world),
        confluent_clients.abandon(world),
        confluent_clients.visit(world),
        confluent_clients.join(world),
        strangers.come_and_go(world),
    ]


def _readers(world: World) -> list[Coroutine[Any, Any, None]]:
    return [own_clients.copy(world), own_clients.check(world)]


async def _settle(world: World) -> None:
    """Until all that was committed has been copied and seen; what is missing then is lost."""
    end = monotonic() + SETTLE_SECONDS
    while not world.ledger.is_settled and monotonic() < end:
        await asyncio.sleep(0.1)


def trends(outcome: Outcome) -> dict[str, Trend]:
    return {name: trend(points) for name, points in series_of(outcome.samples).items()}
