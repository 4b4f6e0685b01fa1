"""Sessions on any broker: who copies what, and what a client of others reads of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from onceflow.client.admin.admin import Admin
from onceflow.client.session.session import Session
from onceflow.types import TopicPartition
from tests.interop.client.cluster.three_nodes import read_committed
from tests.interop.client.consumer.polled_consumers import write
from tests.interop.harness import Names

QUICK: dict[str, Any] = {"heartbeat_interval_ms": 200}


class Copying:
    """Topics `in` and `out` of one run, and the sessions that copy from one to the other."""

    def __init__(self, names: Names, partitions: int = 1) -> None:
        self.names = names
        self.partitions = partitions
        self.source, self.out, self.dead = names("in"), names("out"), names("dead")
        self.group_id = names("group")
        self._written = 0

    async def prepare(self, admin: Admin, records: int = 0) -> None:
        for topic in (self.source, self.out, self.dead):
            await admin.create_topic(topic, partitions=self.partitions)
        await self.write(records)

    async def write(self, count: int) -> None:
        values = [b"%d" % number for number in range(self._written, self._written + count)]
        self._written += count
        await write(self.names.bootstrap, self.source, values)

    def session(self, **settings: Any) -> Session:
        return Session(
            self.names.bootstrap,
            **{"group_id": self.group_id, "topics": [self.source], **QUICK, **settings},
        )

    async def copy(self, session: Session, count: int) -> int:
        """Until it was handed so many different records; how many it was handed."""
        seen: set[tuple[int, int]] = set()
        handed = 0
        async with asyncio.timeout(60):
            async for batch, txn in session:
                for record in batch:
                    handed += 1
                    seen.add((record.partition, record.offset))
                    await txn.send(self.out, record.value, partition=record.partition)
                if len(seen) >= count:
                    break
        return handed

    def visible(self, topic: str | None = None) -> list[int]:
        """What confluent-kafka reads, in order of the numbers."""
        places = [TopicPartition(topic or self.out, each) for each in range(self.partitions)]
        found = read_committed(self.names.bootstrap, places)
        return sorted(int(value) for records in found.values() for _, value in records)

    def expected(self) -> list[int]:
        return list(range(self._written))

    async def offsets(self, admin: Admin) -> list[int]:
        found = await admin.committed_offsets(self.group_id)
        return [found[each] for each in sorted(found)]


class OnItsOwnLoop:
    """A program on a thread and a loop of its own, which can stand still as a whole."""

    def __init__(self, program: Callable[[], Awaitable[None]]) -> None:
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(program,), daemon=True)
        self._thread.start()

    def _run(self, program: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await program()

        try:
            asyncio.run(main())
        except BaseException as problem:
            self._problem = problem

    def end(self) -> None:
        """Waits for it; raises what it raised."""
        self._thread.join(60)
        if self._problem is not None:
            raise self._problem
        assert not self._thread.is_alive()
