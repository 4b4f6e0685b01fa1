"""Sessions whose callers or partitions go away in the midst of a transaction: a batch is committed
with its offsets and with all of its output, or not at all; and is then read again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from onceflow.client.errors.consumer import NotAssigned
from onceflow.client.errors.requests import ConnectionClosed
from onceflow.client.session.clients import SessionConsumer
from onceflow.client.session.session import Session
from onceflow.client.session.session_work import SessionWork
from tests.unit.client.session.simulated_sessions import DEAD, OUT, Theatre, numbers, theatre

SHARED: dict[str, Any] = {
    "commit_interval_ms": 30_000,
    "linger_ms": 1_000,
    "batch_size": 500,
    "max_request_size": 500,
    "max_in_flight_requests_per_connection": 1,
}
"""Its transactions are ended by rebalances, and not before; and that takes a while."""


async def work(session: Session) -> None:
    """Each record becomes two, in two topics."""
    async with session:
        async for batch, txn in session:
            for record in batch:
                await txn.send(OUT, record.value)
                await txn.send(DEAD, record.value)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("moment", range(2, 42, 4))
def test_a_session_that_is_cancelled_in_a_rebalance_commits_all_or_nothing(
    moment: int, strategy: str
) -> None:
    async def program(on: Theatre) -> None:
        how = {**SHARED, "partition_assignment_strategy": strategy}
        await on.produce(*numbers(20))
        session = on.session("one", instance="one", **how)
        working = asyncio.create_task(work(session))
        while session._work._records < 20:
            await asyncio.sleep(0.1)
        revoked = asyncio.Event()
        listener = session._work.on_partitions_revoked

        async def told(partitions: Any) -> None:
            revoked.set()
            await listener(partitions)

        session._work.on_partitions_revoked = told  # type: ignore[method-assign]
        other = asyncio.create_task(work(on.session("other", instance="other", **how)))
        await revoked.wait()
        await asyncio.sleep(moment * 0.0005)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        other.cancel()
        with suppress(asyncio.CancelledError):
            await other
        outputs = [await on.values(topic) for topic in (OUT, DEAD)]
        assert outputs[0] == outputs[1]
        assert outputs[0] in ([], numbers(20))
        assert await on.committed() == ([20] if outputs[0] else [])

    theatre(program, partitions=2)


class Copying:
    """A session that copies on and on."""

    def __init__(self, session: Session) -> None:
        self.handed: list[bytes | None] = []
        self.session = session
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.session as session:
            async for batch, txn in session:
                for record in batch:
                    self.handed.append(record.value)
                    await txn.send(OUT, record.value)

    async def stop(self) -> None:
        self.session.stop()
        await self._task


def copied_by_two_after_one_was_lost() -> list[bytes | None]:
    """One has an open transaction with records of partitions that go to the other."""
    found: list[bytes | None] = []

    async def program(on: Theatre) -> None:
        for partition in range(2):
            await on.produce(*numbers(5, 10 * partition), partition=partition)
        one = Copying(on.session("one", instance="one", commit_interval_ms=20_000))
        while len(one.handed) < 10:
            await asyncio.sleep(0.1)
        other = Copying(on.session("other", instance="other"))
        on.cut("one")
        await asyncio.sleep(12)  # the group does without it
        assert len(other.handed) == 10
        on.mend("one")
        await asyncio.sleep(30)  # it is a member again, and its interval is over
        await one.stop()
        await other.stop()
        found.extend(await on.values())

    theatre(program, partitions=2)
    return found


def test_what_was_read_of_lost_partitions_is_undone() -> None:
    assert sorted(copied_by_two_after_one_was_lost(), key=str) == sorted(
        numbers(5) + numbers(5, 10), key=str
    )


async def nothing(self: SessionWork, partitions: Any) -> None:
    return None


def test_that_finds_a_session_that_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would commit offsets of partitions that it does not have, under its new generation."""
    monkeypatch.setattr(SessionWork, "on_partitions_lost", nothing)
    with pytest.raises(NotAssigned):
        copied_by_two_after_one_was_lost()


def copied_after_an_abort() -> list[bytes | None]:
    """The broker has aborted the first transaction, and the group is as it was."""
    found: list[bytes | None] = []

    async def program(on: Theatre) -> None:
        await on.produce(*numbers(6))
        how: dict[str, Any] = {"max_poll_records": 2, "transaction_timeout_ms": 1_000}
        async with on.session(**how) as session:
            for number in range(5):
                batch, txn = await anext(session)
                for record in batch:
                    await txn.send(OUT, record.value)
                if number == 0:
                    await asyncio.sleep(15)
                if record.offset == 5:
                    break
        found.extend(await on.values())

    theatre(program)
    return found


def test_what_was_aborted_is_read_again() -> None:
    assert copied_after_an_abort() == numbers(6)


def test_it_would_be_missing_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionConsumer, "go_back", lambda self, positions: None)
    assert copied_after_an_abort() == numbers(4, 2)


# --- a close that is cut short --------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(3))
def test_who_waits_for_an_end_is_told_when_a_close_stops_it(turns: int) -> None:
    """Also before its first step."""

    async def program(on: Theatre) -> None:
        async with on.session("one") as session:
            work, asked = session._work, []

            async def ask() -> None:
                asked.append(True)
                await work._uncut(never)

            waiting = [asyncio.create_task(ask()) for _ in range(3)]
            while len(asked) < len(waiting):
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            await work._stop_ending()
            done, _ = await asyncio.wait(waiting, timeout=100)
            assert len(done) == 3
            assert all(isinstance(each.exception(), ConnectionClosed) for each in done)

    theatre(program)


async def never() -> bool:
    await asyncio.sleep(1e6)
    return True


def test_a_close_stops_all_that_it_has_begun_to_end() -> None:
    async def program(on: Theatre) -> None:
        async with on.session("one") as session:
            work = session._work
            running: list[asyncio.Task[Any] | None] = []

            async def slow() -> bool:
                running.append(asyncio.current_task())
                return await never()

            waiting = [asyncio.create_task(work._uncut(slow)) for _ in range(3)]
            await asyncio.sleep(1)
            await work._stop_ending()
            await asyncio.wait(waiting, timeout=1)
            await asyncio.gather(*waiting, return_exceptions=True)
            assert len(running) == 1
            assert all(task is not None and task.done() for task in running)

    theatre(program)
