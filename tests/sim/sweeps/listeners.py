"""Listeners that raise, sleep, seek, commit, unsubscribe or subscribe when partitions come and go,
in simulated worlds; what their consumers hand out and commit is held against the log.

`python -m tests.sim.sweeps.listeners` has them do so each time, and not only the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Final

from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.requests import ClientError
from onceflow.client.producer.producer import Producer
from onceflow.types import TopicPartition
from tests.sim.sweeps.consumers import (
    LONGEST_S,
    PARTITIONS,
    ROWS,
    Begins,
    Broken,
    Member as Polite,
    Scene,
    play,
)
from tests.sim.sweeps.sending import Waits

LATER: Final = 30
"""Rows that come one by one, each second, for each partition."""
LONG_S: Final = 20.0
"""Longer than a session, and than `max.poll.interval.ms` (`consumer_sweeps.SETTINGS`)."""
WORDS: Final = ("assigned", "revoked", "lost")
STRATEGIES: Final = ("range", "cooperative-sticky")
OFTEN: Final = 1_000


class ListenerError(Exception):
    """What a listener raises, of its own."""


Deed = Callable[["Doing", Collection[TopicPartition]], Awaitable[None]]


async def _raise(listener: Doing, partitions: Collection[TopicPartition]) -> None:
    raise ListenerError


async def _sleep(listener: Doing, partitions: Collection[TopicPartition]) -> None:
    await asyncio.sleep(LONG_S)


async def _seek(listener: Doing, partitions: Collection[TopicPartition]) -> None:
    committed = await listener.scene.committed(listener.group)
    for each in partitions:
        await listener.consumer.seek(each, committed.get(each, 0))


async def _commit(listener: Doing, partitions: Collection[TopicPartition]) -> None:
    await listener.consumer.commit()


async def _unsubscribe(listener: Doing, partitions: Collection[TopicPartition]) -> None:
    await listener.consumer.unsubscribe()


async def _subscribe(listener: Doing, partitions: Collection[TopicPartition]) -> None:
    listener.consumer.subscribe(["in"], listener)


DEEDS: Final[dict[str, Deed]] = {
    "raise": _raise,
    "sleep": _sleep,
    "seek": _seek,
    "commit": _commit,
    "unsubscribe": _unsubscribe,
    "subscribe": _subscribe,
}


class Doing(Begins):
    """Does the deed when it hears the word, the first few times."""

    def __init__(self, scene: Scene, group: str, word: str, deed: Deed, times: int) -> None:
        super().__init__(scene, group)
        self.scene, self.group = scene, group
        self.consumer: Consumer
        self.done = 0
        self._word, self._deed, self._times = word, deed, times

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        await super().on_partitions_assigned(partitions)
        await self._heard("assigned", partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        try:
            await self._heard("revoked", partitions)
        finally:
            await super().on_partitions_revoked(partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        await super().on_partitions_revoked(partitions)
        await self._heard("lost", partitions)

    async def _heard(self, word: str, partitions: Collection[TopicPartition]) -> None:
        if word == self._word and self.done < self._times and partitions:
            self.done += 1
            await self._deed(self, partitions)


class Member(Polite):
    """One that polls, and subscribes again if its listener has unsubscribed; it can be told to
    stop, and not to poll for a while."""

    def __init__(self, scene: Scene, strategy: str, listener: Doing) -> None:
        super().__init__(scene, "one", listener.group, strategy, Waits())
        self.begins = listener
        listener.consumer = self.consumer
        self.must_rest = self.must_stop = False

    async def live(self) -> None:
        await self.consumer.start()
        while not self.must_stop:
            if self.consumer.subscription is None:
                self.consumer.subscribe(["in"], self.begins)
            with suppress(ClientError, ListenerError):
                await self._poll()
            if self.must_rest:
                self.must_rest = False
                await asyncio.sleep(LONG_S)
        with suppress(ClientError, ListenerError):
            await self.consumer.close()


async def _feed(scene: Scene) -> None:
    async with Producer(
        scene.bootstrap, net=scene.running.net, clock=scene.world.clock, linger_ms=0
    ) as producer:
        for number in range(LATER * PARTITIONS):
            await producer.send("in", b"later", partition=number % PARTITIONS)
            await asyncio.sleep(1 / PARTITIONS)


async def _done(scene: Scene, group: str, members: Collection[Polite]) -> bool:
    """Whether all is committed; nothing is that was not handed out."""
    received: set[tuple[int, int]] = set().union(*(each.received for each in members))
    committed = await scene.committed(group)
    for place, offset in committed.items():
        if not {(place.partition, number) for number in range(offset)} <= received:
            raise Broken(f"{place}: {offset} is committed, and was not handed out")
    return sum(committed.values()) == (ROWS + LATER) * PARTITIONS


async def _listen(scene: Scene, strategy: str, word: str, deed: Deed, times: int) -> int:
    """How often the deed was done."""
    loop, group, tasks_before = asyncio.get_running_loop(), "g", asyncio.all_tasks()
    one = Member(scene, strategy, Doing(scene, group, word, deed, times))
    other = Polite(scene, "other", group, strategy, Waits())
    works: list[asyncio.Task[Any]] = [loop.create_task(each) for each in (one.live(), _feed(scene))]
    await asyncio.sleep(3.0)
    one.must_rest = word == "lost"
    await asyncio.sleep(1.0)
    guest = loop.create_task(other.live())
    await asyncio.sleep(12.0)
    guest.cancel()
    async with asyncio.timeout(LONGEST_S):
        while not await _done(scene, group, (one, other)):
            for task in (*works, guest):
                if task.done() and not task.cancelled():
                    task.result()
            await asyncio.sleep(0.5)
    one.must_stop = True
    async with asyncio.timeout(LONGEST_S):
        await asyncio.gather(*works)
        await asyncio.gather(guest, return_exceptions=True)
    await asyncio.sleep(2.0)
    await _done(scene, group, (one, other))
    left = {each for each in asyncio.all_tasks() - tasks_before if not each.done()}
    if left or scene.has_connections("one"):
        raise Broken(f"closed, and it goes on: {left}")
    return one.begins.done  # type: ignore[attr-defined,no-any-return]


def listen(strategy: str, word: str, deed: Deed, times: int) -> int:
    """Raises `Broken`; how often the deed was done."""
    count = 0

    async def program(scene: Scene) -> None:
        nonlocal count
        count = await _listen(scene, strategy, word, deed, times)

    try:
        play(program)
    except BaseException as error:
        error.add_note(f"with {strategy}, when it hears {word!r}: {deed.__name__}")
        raise
    return count


def close(deed: Deed) -> BaseException | None:
    """What the close of a consumer raises whose listener does the deed when it hears of that;
    raises `Broken` if anything goes on then, or something else was committed than handed out."""
    outcome: BaseException | None = None

    async def program(scene: Scene) -> None:
        nonlocal outcome
        tasks_before = asyncio.all_tasks()
        listener = Doing(scene, "g", "revoked", deed, OFTEN)
        listener.consumer = consumer = scene.consumer("one", "g")
        await consumer.start()
        consumer.subscribe(["in"], listener)
        count = 0
        while count < ROWS * PARTITIONS:
            count += len(await consumer.poll(1.0))
        try:
            await consumer.close()
        except Exception as error:
            outcome = error
        await asyncio.sleep(2.0)
        left = {each for each in asyncio.all_tasks() - tasks_before if not each.done()}
        if left or scene.has_connections("one") or not listener.done:
            raise Broken(f"closed, and it goes on: {left}")
        if sum((await scene.committed("g")).values()) != count:
            raise Broken("not all was committed")
        async with scene.consumer("another", "g") as another:  # nobody has to wait for a session
            another.subscribe(["in"])
            await another.poll(1.0)
            if len(another.assignment) != PARTITIONS:
                raise Broken("it is still in the group")

    play(program)
    return outcome


def main() -> None:
    """All of it, and each time unless that would have no end."""
    for name, deed in DEEDS.items():
        print("close", name, repr(close(deed)), flush=True)
    for strategy in STRATEGIES:
        for word in WORDS:
            for name, deed in DEEDS.items():
                endless = name in ("sleep", "unsubscribe", "subscribe")
                for times in (1, 2, 3 if endless else OFTEN):
                    print(strategy, word, name, listen(strategy, word, deed, times), flush=True)


if __name__ == "__main__":
    main()
