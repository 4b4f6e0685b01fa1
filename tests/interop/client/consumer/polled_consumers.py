"""Consumers in one event loop, each polled by a task of its own, on any broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.consumer import Consumer, RebalanceListener
from onceflow.client.consumer.fetched import Record
from onceflow.client.producer.producer import Producer
from onceflow.types import TopicPartition
from tests.interop.harness import DidNotSettle, Names, Transcript

Script = Callable[[Admin, Names, Transcript], Awaitable[None]]
Found = TypeVar("Found")
SETTLE_SECONDS = 40.0


def on_a_loop(work: Script, bootstrap: str, names: Names, transcript: Transcript) -> None:
    async def main() -> None:
        async with Admin(bootstrap) as admin:
            await work(admin, names, transcript)

    asyncio.run(main())


def script(work: Script) -> Any:
    """As the fixture `compare` wants it: named, and blocking."""
    made = partial(on_a_loop, work)
    made.__name__ = work.__name__  # type: ignore[attr-defined]  # a partial takes any attribute
    return made


async def until(
    ask: Callable[[], Found], good: Callable[[Found], bool], *, seconds: float = SETTLE_SECONDS
) -> Found:
    """The first answer that is good; others go on meanwhile."""
    deadline = time.monotonic() + seconds
    while not good(answer := ask()):
        if time.monotonic() > deadline:
            raise DidNotSettle(f"after {seconds:.0f} s still {answer!r}")
        await asyncio.sleep(0.02)
    return answer


async def read(consumer: Consumer, count: int) -> list[Record]:
    """Polls until there are so many records."""
    found: list[Record] = []
    async with asyncio.timeout(SETTLE_SECONDS):
        while len(found) < count:
            found += await consumer.poll(0.5)
    return found


async def quiet(consumer: Consumer, seconds: float = 0.7) -> list[Record]:
    """What comes within a while."""
    return await consumer.poll(seconds)


async def write(bootstrap: str, topic: str, values: Collection[bytes], **options: Any) -> None:
    """To the partitions in turn, unless told otherwise."""
    async with Producer(bootstrap) as producer:
        count = await producer.partitions_for(topic)
        for number, value in enumerate(values):
            await producer.send(topic, value, **{"partition": number % count, **options})
        await producer.flush()


class Heard(RebalanceListener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.words: list[tuple[str, list[int]]] = []

    def _note(self, word: str, partitions: Collection[TopicPartition]) -> None:
        self.words.append((word, [each.partition for each in partitions]))

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._note("assigned", partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._note("revoked", partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._note("lost", partitions)


class Member:
    """A consumer that polls in a task of its own until it is stopped."""

    def __init__(self, consumer: Consumer, heard: Heard) -> None:
        self.consumer = consumer
        self.heard = heard
        self.received: list[Record] = []
        self.stopped = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        async with self.consumer as consumer:
            while not self.stopped.is_set():
                self.received += await consumer.poll(0.1)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        if self.task is not None and self.task.done():
            self.task.result()
        return self.consumer.assignment

    async def stop(self) -> None:
        """Closes it in an orderly way; raises what it stumbled over."""
        self.stopped.set()
        if self.task is not None:
            await self.task


class Members:
    """Of one group."""

    def __init__(self, bootstrap: str, group_id: str, topics: list[str], **settings: Any) -> None:
        self.bootstrap = bootstrap
        self._topics = topics
        self._settings = {
            "group_id": group_id,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 200,
            **settings,
        }
        self.all: list[Member] = []

    def settings(self, **more: Any) -> dict[str, Any]:
        return {**self._settings, **more}

    def join(self, **settings: Any) -> Member:
        consumer = Consumer(self.bootstrap, **self.settings(**settings))
        heard = Heard()
        member = Member(consumer, heard)

        async def work() -> None:
            await consumer.start()
            consumer.subscribe(self._topics, heard)
            await member.run()

        member.task = asyncio.get_running_loop().create_task(work())
        self.all.append(member)
        return member

    async def leave(self, member: Member) -> None:
        self.all.remove(member)
        await member.stop()

    def shares(self, partitions: int) -> list[int] | None:
        """How many each one has; None while not each partition is with exactly one."""
        held = Counter(place for member in self.all for place in member.assignment)
        if len(held) == partitions and set(held.values()) == {1}:
            return sorted(len(member.assignment) for member in self.all)
        return None

    async def settle(self, partitions: int) -> list[int]:
        """The shares, once every partition is held and every member holds some."""
        found = await until(
            lambda: self.shares(partitions), lambda held: held is not None and min(held) > 0
        )
        assert found is not None
        return found

    async def stop(self) -> None:
        for member in self.all:
            await member.stop()


@asynccontextmanager
async def members(
    bootstrap: str, group_id: str, topics: list[str], **settings: Any
) -> AsyncIterator[Members]:
    """All are closed at the end, however it ends."""
    group = Members(bootstrap, group_id, topics, **settings)
    try:
        yield group
    finally:
        for member in group.all:
            member.stopped.set()
        tasks = [member.task for member in group.all if member.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
