"""A session's `close` that is cut short, or meets a broker that is away: it ends soon, completely,
and whoever waited for a commit is told the truth."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from onceflow.client.codec.transactions import EndTxn
from onceflow.client.errors.requests import (
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    UnknownOutcome,
)
from onceflow.client.net.connection import BrokerConnection
from onceflow.client.session.clients import SessionProducer
from onceflow.client.session.session import Session
from onceflow.client.transactions import machine as txn_machine
from onceflow.client.transactions.driver import TransactionDriver
from onceflow.client.transactions.retrier import Reply, RequestAttempt
from tests.unit.client.session.simulated_sessions import OUT, Theatre, numbers, theatre

AWHILE_S = 0.5


def ends_take(monkeypatch: pytest.MonkeyPatch, seconds: float, *, lost: bool = False) -> None:
    """Each commit and each abort, of which nobody may hear."""
    send = TransactionDriver._send

    async def late(
        driver: TransactionDriver, ask: RequestAttempt, connection: BrokerConnection
    ) -> Reply:
        if isinstance(ask.request, EndTxn):
            await asyncio.sleep(seconds)
            if lost:
                return ConnectionLost("lost")
        return await send(driver, ask, connection)

    monkeypatch.setattr(TransactionDriver, "_send", late)


async def at_work(on: Theatre) -> Session:
    """It has sent all of its batch, and committed nothing."""
    await on.produce(*numbers(3))
    session = on.session()
    await session.start()
    batch, txn = await anext(session)
    for record in batch:
        await (await txn.send(OUT, record.value))
    return session


def now() -> float:
    return asyncio.get_running_loop().time()


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("after_s", [0.0, 0.001, 1.0])
def test_a_close_that_is_cut_short_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, commit: bool, after_s: float
) -> None:
    async def program(on: Theatre) -> None:
        before = others()
        session = await at_work(on)
        ends_take(monkeypatch, 1.0, lost=True)
        began = now()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after_s):
                await session.close(commit=commit)
        assert now() - began < after_s + AWHILE_S
        assert not others() - before
        await session.close()

    theatre(program)


@pytest.mark.parametrize("commit", [True, False])
def test_also_while_the_broker_is_away(commit: bool) -> None:
    async def program(on: Theatre) -> None:
        session = await at_work(on)
        before = now()
        on.cut()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await session.close(commit=commit)
        assert now() - before < 3.0
        on.mend()
        async with on.session("next") as following:
            batch, _ = await anext(following)
            assert [record.value for record in batch] == numbers(3)

    theatre(program)


@pytest.mark.parametrize("cancels", [1, 2, 3, 4])
def test_a_block_that_is_cancelled_while_the_broker_is_away_ends_soon(cancels: int) -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(3))
        works = asyncio.Event()

        async def whole() -> None:
            async with on.session() as session:
                async for batch, txn in session:
                    for record in batch:
                        await (await txn.send(OUT, record.value))
                    works.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(whole())
        await works.wait()
        on.cut()
        began = now()
        for _ in range(cancels):
            task.cancel()
            await asyncio.wait([task], timeout=0.5)
        await asyncio.wait([task])
        assert task.cancelled()
        assert now() - began < (13.0 if cancels == 1 else 3.0)
        on.mend()

    theatre(program)


@pytest.mark.parametrize("moment", [0.0, 0.5, 2.4, 2.5, 2.6])
def test_who_waits_for_a_commit_is_told_of_it_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch, moment: float
) -> None:
    """Another task closes the session meanwhile, and is cut short."""

    async def program(on: Theatre) -> None:
        session = await at_work(on)
        ends_take(monkeypatch, 3.0)
        waits = asyncio.create_task(anext(session))
        await asyncio.sleep(0.5)
        with suppress(TimeoutError):
            async with asyncio.timeout(moment):
                await session.close()
        (done, _) = await asyncio.wait([waits], timeout=1.0)
        assert done
        error = waits.exception()
        assert isinstance(error, ClientError)
        if moment < 2.5:
            assert isinstance(error, ConnectionClosed)
            assert error.outcome == "unknown"

    theatre(program)


def test_a_close_within_the_consumers_own_cuts_the_producer_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The transaction has ended by then, and records of nobody wait in the producer."""

    async def program(on: Theatre) -> None:
        session = await at_work(on)
        closing = asyncio.Event()
        close = session._consumer.close

        async def slow(**how: object) -> None:
            closing.set()
            await asyncio.sleep(1.0)
            await close(commit=False)

        monkeypatch.setattr(session._consumer, "close", slow)
        patient = []

        async def noted() -> None:
            patient.append(1)

        monkeypatch.setattr(session._producer, "close", noted)
        task = asyncio.create_task(session.close())
        await closing.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not patient
        assert not session._producer.is_started
        await close(commit=False)

    theatre(program)


# --- commits that nobody answered -----------------------------------------------------------------

HASTY: dict[str, Any] = {"delivery_timeout_ms": 5_000, "request_timeout_ms": 2_000}


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_commit_that_was_unclear_is_asked_about_again(arrives: bool, is_lost: bool) -> None:
    """Also when the member has lost its partitions meanwhile: the batch is not read again if it
    was committed."""

    async def program(on: Theatre) -> None:
        await on.produce(*numbers(3))
        session = on.session(**HASTY)
        await session.start()
        batch, txn = await anext(session)
        for record in batch:
            await txn.send(OUT, record.value)
        with pytest.MonkeyPatch.context() as patch:
            send = TransactionDriver._send

            async def lost(
                driver: TransactionDriver, ask: RequestAttempt, connection: BrokerConnection
            ) -> Reply:
                if not isinstance(ask.request, EndTxn):
                    return await send(driver, ask, connection)
                if arrives:
                    await send(driver, ask, connection)
                await asyncio.sleep(0.5)
                return ConnectionLost("lost")

            patch.setattr(TransactionDriver, "_send", lost)
            with pytest.raises(UnknownOutcome):
                await anext(session)
        if is_lost:
            await session._work.on_partitions_lost([])
        await on.produce(*numbers(3, 3))
        async with asyncio.timeout(60):
            batch, txn = await anext(session)
        assert [record.value for record in batch] == numbers(3, 3)
        for record in batch:
            await txn.send(OUT, record.value)
        await session.close()
        assert await on.values() == numbers(6)
        assert await on.committed() == [6]

    theatre(program)


def test_whether_an_epoch_is_due_is_decided_before_a_batch_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who gives up waiting for it must not have taken records along."""

    async def program(on: Theatre) -> None:
        await on.produce(*numbers(3))
        async with on.session() as session:
            monkeypatch.setattr(SessionProducer, "needs_renewal", False)
            monkeypatch.setattr(txn_machine, "RENEWED_AFTER_S", -1.0)
            monkeypatch.setattr(txn_machine.TransactionMachine, "renew", None)
            batch, _ = await anext(session)
            assert [record.value for record in batch] == numbers(3)
            monkeypatch.undo()

    theatre(program)
