"""Tasks and threads that a listener starts are the listener only while that is waited for."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections.abc import Collection
from typing import Any

import pytest

from onceflow import blocking
from onceflow.blocking.loop import WouldWaitForever
from onceflow.client.consumer.consumer import Consumer, RebalanceListener
from onceflow.client.errors.consumer import WrongUse
from onceflow.types import TopicPartition
from tests.unit.client.consumer.simulated_consumers import Stage, hold, read, stage

SECONDS = 30.0
Partitions = Collection[TopicPartition]


class StartsWorkers(RebalanceListener):
    """Starts a task with the first assignment, which goes on behind it."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.may_go_on = asyncio.Event()
        self.worker: asyncio.Task[Any] | None = None

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        if self.worker is None:
            self.worker = asyncio.create_task(self._work())

    async def _work(self) -> Any:
        await self.may_go_on.wait()
        return await self.work()

    async def work(self) -> Any:
        raise NotImplementedError

    async def done(self) -> Any:
        self.may_go_on.set()
        assert self.worker is not None
        async with asyncio.timeout(100):
            return await self.worker


class Polls(StartsWorkers):
    async def work(self) -> Any:
        return [each.value for each in await read(self.consumer, 1)]


class Closes(StartsWorkers):
    async def work(self) -> None:
        await self.consumer.close()


class Unsubscribes(StartsWorkers):
    async def work(self) -> None:
        await self.consumer.unsubscribe()


@pytest.mark.parametrize("kind", [Polls, Closes, Unsubscribes])
def test_a_task_of_a_listener_that_has_returned_may_do_all(kind: type[StartsWorkers]) -> None:
    async def program(stage: Stage) -> None:
        async with stage.member() as ours:
            listener = kind(ours)
            ours.subscribe(["orders"], listener)
            await hold(ours, 1)
            await stage.produce(b"0")
            found = await listener.done()
            if kind is Polls:
                assert found == [b"0"]
            else:
                assert ours.assignment == frozenset()
                assert ours.subscription is None

    stage(program)


def test_a_task_that_a_listener_waits_for_is_the_listener() -> None:
    class Waits(RebalanceListener):
        def __init__(self, consumer: Consumer) -> None:
            self.consumer = consumer

        async def on_partitions_assigned(self, partitions: Partitions) -> None:
            with pytest.raises(WrongUse):
                await asyncio.create_task(self.consumer.poll(1))
            with pytest.raises(WrongUse):
                await asyncio.create_task(self.consumer.close())
            await asyncio.create_task(self.consumer.unsubscribe())

    async def program(stage: Stage) -> None:
        async with stage.member() as ours:
            ours.subscribe(["orders"], Waits(ours))
            await ours.poll(5)
            assert ours.subscription is None

    stage(program)


# --- blocking -----------------------------------------------------------------------------------

NUMBERS = itertools.count()


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"l-{next(NUMBERS)}"
    with blocking.Admin(bootstrap) as admin:
        admin.create_topic(name, partitions=1)
    return name


class StartsAThread(blocking.RebalanceListener):
    """With its own context, as executors and frameworks do."""

    def __init__(self, reader: blocking.Consumer) -> None:
        self.reader = reader
        self.refused: list[BaseException] = []
        self.found: list[bytes | None] = []
        self.has_refused, self.may_go_on = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        context = contextvars.copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._work,), daemon=True)
        self.thread.start()
        assert self.has_refused.wait(SECONDS)

    def _work(self) -> None:
        try:
            self.reader.poll(1)
        except WouldWaitForever as error:
            self.refused.append(error)
        self.has_refused.set()
        assert self.may_go_on.wait(SECONDS)
        self.found = [each.value for each in self.reader.poll(SECONDS)]


def test_a_thread_of_a_listener_that_has_returned_may_poll(bootstrap: str, topic: str) -> None:
    settings = {"group_id": topic, "auto_offset_reset": "earliest"}
    with blocking.Consumer(bootstrap, settings) as reader:
        listener = StartsAThread(reader)
        reader.subscribe([topic], listener)
        while not reader.assignment:
            reader.poll(0.1)
        with blocking.Producer(bootstrap) as sender:
            sender.send(topic, b"0").result(SECONDS)
        listener.may_go_on.set()
        assert listener.thread is not None
        listener.thread.join(SECONDS)
        assert listener.refused
        assert listener.found == [b"0"]
