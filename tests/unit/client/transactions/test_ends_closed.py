"""What becomes of a commit, a prepare or an abort when its producer is closed under it, and perhaps
started again: nothing is half done, whoever waits is told, and nothing reaches the next life."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from onceflow.client.codec.transactions import EndTxn, InitProducerIdRequest, TransactionRequest
from onceflow.client.errors.requests import (
    AbortableError,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    UnknownOutcome,
)
from onceflow.client.net.connection import BrokerConnection
from onceflow.client.producer.producer import Producer
from onceflow.client.transactions.driver import TransactionDriver
from onceflow.client.transactions.retrier import Reply, RequestAttempt
from onceflow.client.transactions.states import ProducerState, WrongState
from onceflow.testing.world import World
from tests.unit.broker.broker_under_test import RawClient, Running
from tests.unit.client.producer.simulated_producers import play, producer
from tests.unit.client.transactions.closing import (
    close_cut_short,
    committed,
    failure,
    is_in,
    unsent,
)

HOW: dict[str, Any] = {"transactional_id": "id", "linger_ms": 0}


async def with_one_sent(world: World, client: RawClient) -> Producer:
    """A producer in a transaction of which one record is there, in `t`; `u` is empty."""
    await client.create("t")
    await client.create("u")
    ours = producer(world, **HOW)
    await ours.start()
    await ours.init_transactions()
    await ours.begin_transaction()
    await (await ours.send("t", b"one"))
    return ours


# --- half a transaction ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_alone", [False, True])
def test_half_a_transaction_is_not_committed_in_the_next_life(is_alone: bool) -> None:
    """`is_alone`: who asked for the commit does not wait for it."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        ours = await with_one_sent(world, client)
        with unsent():
            await ours.send("u", b"two")
            committing = asyncio.create_task(ours.commit_transaction())
            await asyncio.sleep(0.2)
            if is_alone:
                committing.cancel()
                await asyncio.wait([committing])
            await close_cut_short(ours)
        await ours.start()
        expected = asyncio.CancelledError if is_alone else ConnectionClosed
        assert isinstance(await failure(committing), expected)
        async with ours.transaction() as transaction:
            await transaction.send("u", b"of the next life")
        await ours.close()
        assert await committed(client, "t") == []
        assert await committed(client, "u") == [b"of the next life"]

    play(script)


# --- lives ----------------------------------------------------------------------------------------


class Deaf:
    """Ends that are asked for in the first life of a producer are lost, after a while; and which
    of them are asked for in the second."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lost_after_s = 3.0
        self.is_second_life = False
        self.asked_again: list[TransactionRequest] = []
        self._send = TransactionDriver._send
        given = self

        async def send(
            driver: TransactionDriver, ask: RequestAttempt, connection: BrokerConnection
        ) -> Reply:
            return await given.sent(driver, ask, connection)

        patch.setattr(TransactionDriver, "_send", send)

    async def sent(
        self, driver: TransactionDriver, ask: RequestAttempt, connection: BrokerConnection
    ) -> Reply:
        if self.is_second_life:
            self.asked_again.append(ask.request)
        elif isinstance(ask.request, EndTxn):
            await asyncio.sleep(self.lost_after_s)
            return ConnectionLost("lost")
        return await self._send(driver, ask, connection)


@pytest.mark.parametrize("is_alone", [False, True])
@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_an_end_is_not_asked_for_in_the_next_life(
    end: str, is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        ours = await with_one_sent(world, client)
        deaf = Deaf(monkeypatch)
        ending = asyncio.create_task(getattr(ours, end)())
        await asyncio.sleep(0.2)
        if is_alone:
            ending.cancel()
            await asyncio.wait([ending])
        await close_cut_short(ours)
        deaf.is_second_life = True
        await ours.start()
        assert ending.done()
        expected = UnknownOutcome if end == "commit_transaction" else AbortableError
        assert isinstance(await failure(ending), asyncio.CancelledError if is_alone else expected)
        await ours.init_transactions()
        async with ours.transaction() as transaction:
            await transaction.send("u", b"of the next life")
        await ours.close()
        asked = dict.fromkeys(type(each) for each in deaf.asked_again)
        assert list(asked) == [InitProducerIdRequest, EndTxn]
        assert await committed(client, "u") == [b"of the next life"]

    play(script)


def test_a_block_and_a_send_of_one_life_are_over_in_the_next() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        ours = producer(world, **HOW)
        await ours.start()
        block = ours.transaction()
        await block.__aenter__()
        late = asyncio.create_task(ours.send("t", b"of the first"))
        await asyncio.sleep(0.00001)  # it asks where the topic is
        assert not late.done()
        await close_cut_short(ours, 0)
        await ours.start()
        async with ours.transaction() as transaction:
            with pytest.raises(WrongState, match="is over"):
                await block.send("t", b"of the first")
            await asyncio.gather(late, return_exceptions=True)
            await transaction.send("t", b"of the second")
            with pytest.raises(WrongState, match="is over"):
                await block.send("t", b"of the first")
            await block.__aexit__(KeyError, KeyError(), None)
        await ours.close()
        assert isinstance(late.exception(), ClientError)
        assert await committed(client, "t") == [b"of the second"]

    play(script)


@pytest.mark.parametrize("call", ["init_transactions", "begin_transaction"])
def test_who_waited_for_an_end_does_nothing_in_the_next_life(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        ours = await with_one_sent(world, client)
        deaf = Deaf(monkeypatch)
        ending = asyncio.create_task(ours.abort_transaction())
        await asyncio.sleep(0.2)
        waiting = asyncio.create_task(getattr(ours, call)())
        await asyncio.sleep(0.2)
        await close_cut_short(ours)
        deaf.is_second_life = True
        await ours.start()
        assert isinstance(await failure(waiting), ClientError)
        assert isinstance(await failure(ending), ClientError)
        assert deaf.asked_again == []
        assert is_in(ours, ProducerState.UNINITIALIZED)
        await ours.close()

    play(script)


# --- whoever waits is told ------------------------------------------------------------------------


@pytest.mark.parametrize("is_closer_first", [False, True])
@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_who_waits_for_an_end_is_told_when_its_caller_and_a_close_are_cancelled_at_once(
    end: str, is_closer_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        ours = await with_one_sent(world, client)
        Deaf(monkeypatch)
        ending = asyncio.create_task(getattr(ours, end)())
        await asyncio.sleep(0.1)
        sharing = asyncio.create_task(getattr(ours, end)())
        beginning = asyncio.create_task(ours.begin_transaction())
        closing = asyncio.create_task(ours.close())
        await asyncio.sleep(0.1)
        for task in (closing, ending) if is_closer_first else (ending, closing):
            task.cancel()
        assert isinstance(await failure(ending), asyncio.CancelledError)
        assert isinstance(await failure(closing), asyncio.CancelledError)
        expected = UnknownOutcome if end == "commit_transaction" else ConnectionClosed
        assert isinstance(await failure(sharing), expected)
        assert isinstance(await failure(beginning), WrongState)

    play(script)


def test_a_commit_that_an_abort_has_replaced_ends_with_the_close_too() -> None:
    """Its caller has gone, and whoever asked for the abort has its own."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        ours = await with_one_sent(world, client)
        before = asyncio.all_tasks()
        ends = ours._ends
        assert ends is not None
        with unsent():
            await ours.send("u", b"two")
            for call in (ours.commit_transaction, ours.abort_transaction):
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await call()
            left = asyncio.all_tasks() - before
            assert len(left) >= 2, "the commit, and the abort that takes its place"
            ends.close()
            assert all(task.cancelling() for task in left if "_work" in repr(task.get_coro()))
            await close_cut_short(ours)
        assert not asyncio.all_tasks() - before

    play(script)
