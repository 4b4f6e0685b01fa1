"""Out of a group while somebody polls, while another member comes, or while somebody else wants the
same: it happens once, and nobody is stuck or misled."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import pytest

from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.consumer import ConsumerClosed, WrongUse
from onceflow.client.errors.requests import ClientError
from onceflow.types import TopicPartition
from tests.unit.client.consumer.simulated_consumers import Heard, Polling, Stage, hold, read, stage

FAST: dict[str, Any] = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6_000}
_STUCK_S = 30


@pytest.fixture(autouse=True)
def _not_stuck() -> Iterator[None]:
    """A loop that never waits cannot be timed out from inside of it."""

    def ring(*_: object) -> None:
        raise RuntimeError("the event loop is stuck")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_STUCK_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Slow(Heard):
    """Takes its time when it hears that word. With `ignores_s` it takes no notice of being
    cancelled, and goes on for so long."""

    def __init__(self, word: str, takes_s: float, ignores_s: float | None = None) -> None:
        super().__init__()
        self.word, self.takes_s, self.ignores_s = word, takes_s, ignores_s

    async def _hear(self, word: str, partitions: Collection[TopicPartition]) -> None:
        self.note(word, partitions)
        if word == self.word:
            try:
                await asyncio.sleep(self.takes_s)
            except asyncio.CancelledError:
                if self.ignores_s is None:
                    raise
                if self.ignores_s:
                    await asyncio.sleep(self.ignores_s)

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        await self._hear("assigned", partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        await self._hear("revoked", partitions)


@pytest.mark.parametrize("how", ["close", "unsubscribe"])
def test_another_member_comes_while_one_that_polls_leaves(how: str) -> None:
    async def program(on: Stage) -> None:
        heard = Slow("revoked", 1)
        await on.produce(b"a")
        one = on.member(**FAST)
        await one.start()
        one.subscribe(["orders"], heard)
        await read(one, 1)
        polling = Polling(one)
        await asyncio.sleep(1)
        leaving = asyncio.get_running_loop().create_task(getattr(one, how)())
        await asyncio.sleep(0.1)
        async with on.member(**FAST) as other:
            other.subscribe(["orders"])
            async with asyncio.timeout(10):
                await hold(other, 1)
            await leaving
            await asyncio.sleep(5)
            assert heard.words == [("assigned", [0]), ("revoked", [0])]
            await polling.stop()
            await one.close()

    stage(program)


@pytest.mark.parametrize("ignores_s", [0.0, 1_000.0])
def test_a_listener_that_takes_no_notice_of_a_close_holds_up_nobody(ignores_s: float) -> None:
    async def program(on: Stage) -> None:
        one = on.member(**FAST)
        await one.start()
        one.subscribe(["orders"], Slow("assigned", 100, ignores_s))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await one.poll(10)
        async with on.member(**FAST) as other:
            other.subscribe(["orders"])
            polling = Polling(other)
            await asyncio.sleep(2)  # it is to join again
            async with asyncio.timeout(3.5):
                await one.close(timeout_s=3)
            async with asyncio.timeout(1):
                await polling.until(lambda: bool(other.assignment))
            await polling.stop()

    stage(program)


@pytest.mark.parametrize("ignores_s", [0.0, 1_000.0])
def test_a_listener_that_takes_no_notice_of_what_it_gives_up(ignores_s: float) -> None:
    async def program(on: Stage) -> None:
        one = on.member(**FAST)
        await one.start()
        one.subscribe(["orders"], Slow("revoked", 100, ignores_s))
        await hold(one, 1)
        async with asyncio.timeout(3.5):
            await one.close(timeout_s=3)
        async with on.member(**FAST) as other:
            other.subscribe(["orders"])
            async with asyncio.timeout(1):
                await hold(other, 1)

    stage(program)


@pytest.mark.parametrize("timeout_s", [0.0, 30.0])
def test_a_close_that_is_cut_short_before_it_has_begun_is_one_all_the_same(
    timeout_s: float,
) -> None:
    async def program(on: Stage) -> None:
        one = on.member(**FAST)
        await one.start()
        one.subscribe(["orders"])
        await hold(one, 1)
        closing = asyncio.get_running_loop().create_task(one.close(timeout_s=timeout_s))
        while one._work._closed is None:  # whose turn it is in a simulated loop is a matter of luck
            await asyncio.sleep(0)
        if timeout_s:
            closing.cancel()
        await asyncio.wait([closing])
        async with on.member(**FAST) as other:
            other.subscribe(["orders"])
            async with asyncio.timeout(1 if timeout_s else 10):
                await hold(other, 1)

    stage(program)


def test_all_who_want_it_out_wait_for_the_same() -> None:
    async def program(on: Stage) -> None:
        heard = Slow("revoked", 3)
        one = on.member(**FAST)
        await one.start()
        one.subscribe(["orders"], heard)
        await hold(one, 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        both = [loop.create_task(one.unsubscribe()) for _ in range(2)]
        await asyncio.sleep(1)
        await one.close()
        assert 3 <= loop.time() - began < 4
        await asyncio.gather(*both)
        assert heard.words == [("assigned", [0]), ("revoked", [0])]

    stage(program)


def test_who_waits_for_a_leave_that_somebody_else_cuts_short_is_not_cancelled() -> None:
    async def program(on: Stage) -> None:
        one = on.member(**FAST)
        await one.start()
        one.subscribe(["orders"], Slow("revoked", 100))
        await hold(one, 1)
        unsubscribing = asyncio.get_running_loop().create_task(one.unsubscribe())
        await asyncio.sleep(1)
        async with asyncio.timeout(2.5):
            await one.close(timeout_s=2)
        await unsubscribing

    stage(program)


def test_who_polls_is_told_of_a_close_and_not_cancelled() -> None:
    """The poll waits for a listener, and the close has no time for that."""

    async def program(on: Stage) -> None:
        one = on.member(**FAST)
        await one.start()
        one.subscribe(["orders"], Slow("assigned", 100))
        polling = asyncio.get_running_loop().create_task(one.poll(200))
        await asyncio.sleep(5)
        await one.close(timeout_s=3)
        with pytest.raises(ConsumerClosed):
            await polling

    stage(program)


def test_who_polls_goes_on_when_somebody_else_has_cut_short_what_it_waited_for() -> None:
    async def program(on: Stage) -> None:
        one = on.member(**FAST)
        await one.start()
        one.subscribe(["orders"], Slow("assigned", 100))
        polling = asyncio.get_running_loop().create_task(one.poll(20))
        await asyncio.sleep(5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await one.unsubscribe()
        assert await polling == []
        await one.close()

    stage(program)


class Changes(Heard):
    """Subscribes to something else when it is given partitions."""

    def __init__(self, consumer: Any, *, back: bool) -> None:
        super().__init__()
        self.consumer, self.back = consumer, back

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        await super().on_partitions_assigned(partitions)
        await self.consumer.unsubscribe()
        self.consumer.subscribe(["others"])
        if self.back:
            await self.consumer.unsubscribe()


@pytest.mark.parametrize("back", [False, True])
def test_a_listener_may_unsubscribe_and_subscribe_to_something_else(back: bool) -> None:
    async def program(on: Stage) -> None:
        await on.client.create("others", 1)
        async with on.member(**FAST) as one:
            one.subscribe(["orders"], Changes(one, back=back))
            for _ in range(10):
                await one.poll(1)
            assert {each.topic for each in one.assignment} == (set() if back else {"others"})
            assert (one.subscription is None) is back

    stage(program)


def test_a_subscription_beside_one_that_leaves_comes_next() -> None:
    async def program(on: Stage) -> None:
        await on.client.create("others", 1)
        async with on.member(**FAST) as one:
            one.subscribe(["orders"], Slow("revoked", 2))
            await hold(one, 1)
            leaving = asyncio.get_running_loop().create_task(one.unsubscribe())
            await asyncio.sleep(1)
            one.subscribe(["others"])
            with pytest.raises(WrongUse):
                await one.assign(["orders"])
            polling = Polling(one)
            await leaving
            async with asyncio.timeout(10):
                await polling.until(lambda: bool(one.assignment))
            assert {each.topic for each in one.assignment} == {"others"}
            await polling.stop()

    stage(program)


def test_partitions_by_hand_and_a_subscription_do_not_both_hold() -> None:
    """It subscribes while it is asked which partitions there are."""

    async def program(on: Stage) -> None:
        await on.client.create("others", 1)
        await on.client.create("unasked", 1)
        async with on.member(**FAST) as one:
            assigning = asyncio.get_running_loop().create_task(one.assign(["orders"]))
            await asyncio.sleep(0)
            one.subscribe(["others"])
            with pytest.raises(WrongUse):
                await assigning
            await hold(one, 1)
            assert {each.topic for each in one.assignment} == {"others"}
            await one.unsubscribe()
            assigning = asyncio.get_running_loop().create_task(one.assign(["unasked"]))
            await asyncio.sleep(0)
            await one.close()
            await one.start()
            with pytest.raises(ClientError):  # the life for which it was meant is over
                await assigning
            assert one.assignment == set()

    stage(program)


def test_a_listener_that_returns_late_does_nothing_to_the_next_subscription() -> None:
    async def program(stage: Stage) -> None:
        late, heard = Slow("revoked", 100, ignores_s=8), Heard()
        await stage.produce(b"0")
        async with stage.member(**FAST) as ours:
            ours.subscribe(["orders"], late)
            await read(ours, 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await ours.unsubscribe()
            ours.subscribe(["orders"], heard)
            await hold(ours, 1)
            for _ in range(15):
                await ours.poll(1)
            assert heard.words == [("assigned", [0])]
            assert ours.assignment == {TopicPartition("orders", 0)}
            await stage.produce(b"1")
            assert [each.value for each in await read(ours, 1)] == [b"1"]

    stage(program)


def test_who_takes_rows_one_by_one_has_none_of_a_group_that_was_left() -> None:
    async def program(stage: Stage) -> None:
        taken: list[int] = []

        async def take(consumer: Consumer) -> None:
            async for record in consumer:
                taken.append(record.offset)
                await asyncio.sleep(0.5)

        async with stage.member(**FAST) as ours, stage.member(**FAST) as other:
            ours.subscribe(["orders"], Slow("revoked", 1))
            taking = asyncio.create_task(take(ours))
            await asyncio.sleep(3.3)
            leaving = asyncio.create_task(ours.unsubscribe())
            await asyncio.sleep(0.02)
            await stage.produce(*(b"%d" % each for each in range(10)))
            await leaving
            before = list(taken)
            other.subscribe(["orders"])
            assert [each.offset for each in await read(other, 10 - len(before))][-1] == 9
            await asyncio.sleep(10)
            assert taken == before
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    stage(program)


def test_a_poll_that_is_cut_short_does_not_cut_short_what_a_listener_wanted() -> None:
    class Leaves(Slow):
        async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            await self._hear("assigned", partitions)
            await ours[0].unsubscribe()

        async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            await super().on_partitions_revoked(partitions)
            self.note("done", partitions)

    ours: list[Consumer] = []

    async def program(stage: Stage) -> None:
        heard = Leaves("revoked", 3)
        async with stage.member(**FAST) as member:
            ours.append(member)
            member.subscribe(["orders"], heard)
            for _ in range(8):
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await member.poll(10)
        assert heard.words == [("assigned", [0]), ("revoked", [0]), ("done", [0])]

    stage(program)


def test_what_a_listener_raises_when_it_is_cut_off_is_no_noise() -> None:
    class Raises(Heard):
        async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                raise RuntimeError("could not roll back") from None

    async def program(stage: Stage) -> None:
        ours = stage.member(**FAST)
        await ours.start()
        ours.subscribe(["orders"], Raises())
        await hold(ours, 1)
        await ours.close(timeout_s=3)  # the simulation fails for a task that nobody looked at

    stage(program)


def test_who_polls_on_whatever_it_is_told_does_not_stop_the_close() -> None:
    async def program(stage: Stage) -> None:
        async def poll_on() -> None:
            while True:
                with suppress(ClientError):
                    await ours.poll(1)

        ours = stage.member(**FAST)
        await ours.start()
        ours.subscribe(["orders"], Slow("revoked", 1))
        polling = asyncio.create_task(poll_on())
        while not ours.assignment:
            await asyncio.sleep(0.1)
        closing = asyncio.create_task(ours.close())
        closing.add_done_callback(lambda _: polling.cancel())
        await closing

    stage(program)
