"""Sessions on a broker inside a test: the real client on the simulated network, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.fetched import Record
from onceflow.client.group.requests import leave
from onceflow.client.session.session import Session
from tests.unit.client.consumer.simulated_consumers import GROUP, Stage, stage as consumer_stage

OUT = "bookings"
DEAD = "dead"
BROKER = "broker"
Program = Callable[["Theatre"], Awaitable[None]]


class Theatre(Stage):
    """A broker with topics to read from and to write to."""

    @property
    def bootstrap(self) -> str:
        host, port = self.running.address
        return f"{host}:{port}"

    def session(self, host: str = "session", **settings: Any) -> Session:
        """Not started yet; hosts can be cut off by name."""
        how: dict[str, Any] = {
            "group_id": GROUP,
            "topics": ["orders"],
            "session_timeout_ms": 10_000,
            "heartbeat_interval_ms": 1_000,
            **settings,
        }
        return Session(
            self.bootstrap,
            net=self.world.net.host(host),
            clock=self.world.clock,
            rand=self.world.rand.fork(host),
            **how,
        )

    def cut(self, host: str = "session") -> None:
        self.world.net.partition(host, BROKER)

    def mend(self, host: str = "session") -> None:
        self.world.net.join(host, BROKER)

    async def expel(self, session: Session) -> None:
        """Out of its group, which nobody tells it."""
        async with Admin(self.bootstrap, net=self.running.net) as admin:
            await leave(admin.cluster, session._consumer.group_metadata(), "expelled")

    async def written(self, topic: str = OUT) -> list[Record]:
        """All that readers of committed records see."""
        found: list[Record] = []
        async with self.consumer() as reader:
            await reader.assign([topic])
            while records := await reader.poll(1):
                found += records
        return found

    async def values(self, topic: str = OUT) -> list[bytes | None]:
        return [record.value for record in await self.written(topic)]

    async def committed(self) -> list[int]:
        """Of each partition of `orders` of which something was."""
        async with Admin(self.bootstrap, net=self.running.net) as admin:
            found = await admin.committed_offsets(GROUP)
        return [found[each] for each in sorted(found)]


def theatre(program: Program, *, partitions: int = 1, **settings: Any) -> None:
    """Runs a program."""

    async def whole(stage: Stage) -> None:
        for topic in (OUT, DEAD):
            await stage.client.create(topic, 1)
        await program(Theatre(stage.world, stage.running, stage.client))

    consumer_stage(whole, partitions=partitions, **settings)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def copy(session: Session, count: int, *, pause_s: float = 0.0) -> list[bytes | None]:
    """What it has handed out until there were so many different records; each is written to the
    other topic. Ends in peace."""
    handed: list[bytes | None] = []
    seen: set[tuple[int, int]] = set()
    async for batch, txn in session:
        for record in batch:
            handed.append(record.value)
            seen.add((record.partition, record.offset))
            await txn.send(OUT, record.value)
        await asyncio.sleep(pause_s)
        if len(seen) >= count:
            break
    return handed
