"""Sessions and what happens around them: rebalances, members that are cut off, commits that nobody
answers, callers that do not wait. Each record is copied once, whoever does it in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from onceflow.client.codec.transactions import GroupMember
from onceflow.client.errors.requests import AbortableError, ClientError, UnknownOutcome
from onceflow.client.session.clients import SessionConsumer, SessionProducer
from onceflow.client.session.errors import BatchUndone
from onceflow.client.session.session import Session
from onceflow.client.session.session_work import SessionWork
from onceflow.client.transactions.states import ProducerState
from tests.unit.client.session.simulated_sessions import OUT, Theatre, copy, numbers, theatre


class Worker:
    """Copies until it is told to stop; says what it was handed."""

    def __init__(self, session: Session, *, pause_s: float = 0.0) -> None:
        self.handed: list[bytes | None] = []
        self.session = session
        self._pause_s = pause_s
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        async with self.session as session:
            async for batch, txn in session:
                for record in batch:
                    self.handed.append(record.value)
                    await txn.send(OUT, record.value)
                await asyncio.sleep(self._pause_s)

    async def stop(self) -> None:
        self.session.stop()
        await self.task


async def until_copied(on: Theatre, count: int) -> None:
    async with asyncio.timeout(300):
        while sum(await on.committed()) < count:
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("interval_ms", [0, 3_000])
def test_partitions_are_given_up_when_their_transaction_has_ended(
    strategy: str, interval_ms: int
) -> None:
    """Nobody is handed what another one has done already, so nothing had to be aborted."""

    async def program(on: Theatre) -> None:
        for partition in range(4):
            await on.produce(*numbers(20, 100 * partition), partition=partition)
        how: dict[str, Any] = {
            "max_poll_records": 1,
            "partition_assignment_strategy": strategy,
            "commit_interval_ms": interval_ms,
        }
        one = Worker(on.session("one", instance="one", **how), pause_s=0.05)
        await asyncio.sleep(1)
        other = Worker(on.session("other", instance="other", **how), pause_s=0.05)
        await until_copied(on, 80)
        handed = Counter(one.handed + other.handed)
        assert other.handed
        assert set(handed.values()) == {1}
        await one.stop()
        await other.stop()
        assert Counter(await on.values()) == handed
        assert len(handed) == 80

    theatre(program, partitions=4)


def test_a_member_that_was_cut_off_aborts_and_the_other_one_does_the_work() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(4))
        async with on.session("old", instance="old") as old:
            batch, txn = await anext(old)
            for record in batch:
                await (await txn.send(OUT, record.value))
            on.cut("old")
            async with on.session("new", instance="new", max_poll_interval_ms=30_000) as new:
                assert await copy(new, 4) == numbers(4)
                on.mend("old")
                both = [asyncio.create_task(copy(each, 1)) for each in (old, new)]
                await until_copied(on, 4)
                await on.produce(b"4")
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        assert await on.values() == numbers(5)

    theatre(program)


def test_the_member_learns_from_its_transaction_that_it_is_out() -> None:
    """And does not do the work again before it has joined again."""

    async def program(on: Theatre) -> None:
        await on.produce(*numbers(4))
        handed: list[bytes | None] = []
        async with on.session("one", heartbeat_interval_ms=9_000) as session:
            async for batch, txn in session:
                for record in batch:
                    handed.append(record.value)
                    await txn.send(OUT, record.value)
                if len(handed) == 4:
                    await on.expel(session)
                else:
                    break
        assert handed == numbers(4) * 2
        assert await on.values() == numbers(4)

    theatre(program)


def test_leaving_in_peace_says_when_the_last_batch_was_undone() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(2))

        async def leave() -> None:
            async with on.session(heartbeat_interval_ms=9_000) as session:
                async for batch, txn in session:
                    for record in batch:
                        await txn.send(OUT, record.value)
                    await on.expel(session)
                    break

        with pytest.raises(BatchUndone, match="was not committed"):
            await leave()
        assert await on.values() == []
        assert await on.committed() == []

    theatre(program)


def test_a_zombie_of_another_id_doubles_without_its_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hazard of moving input between transactional ids, and what stops it."""

    def run(*, fenced: bool) -> list[bytes | None]:
        found: list[bytes | None] = []

        async def program(on: Theatre) -> None:
            await on.produce(*numbers(3))
            async with on.session("zombie", instance="zombie") as zombie:
                batch, txn = await anext(zombie)
                for record in batch:
                    await (await txn.send(OUT, record.value))
                on.cut("zombie")
                async with on.session("heir", instance="heir") as heir:
                    await copy(heir, 3)
                on.mend("zombie")
                if not fenced:
                    monkeypatch.setattr(
                        SessionConsumer, "group_metadata", lambda self: GroupMember("shop")
                    )
                with suppress(BatchUndone):
                    await zombie.close()
            found.extend(await on.values())

        theatre(program)
        monkeypatch.undo()
        return found

    assert run(fenced=True) == numbers(3)
    assert sorted(run(fenced=False), key=str) == sorted(numbers(3) * 2)


# --- callers, and answers that do not come --------------------------------------------------------


def test_who_stops_waiting_for_a_batch_loses_none() -> None:
    async def program(on: Theatre) -> None:
        async with on.session(max_poll_records=1) as session:
            handed: list[bytes | None] = []
            for number in range(8):
                if number in (2, 5):
                    await on.produce(*numbers(2, number))
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        batch, txn = await anext(session)
                        for record in batch:
                            handed.append(record.value)
                            await txn.send(OUT, record.value)
        assert handed == [b"2", b"3", b"5", b"6"]
        assert await on.values() == handed

    theatre(program)


@pytest.mark.parametrize("wait_s", [0.0, 0.0005, 0.001, 0.002, 0.003, 0.005])
def test_who_stops_waiting_for_a_commit_leaves_it_whole(wait_s: float) -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(4))
        async with on.session(max_poll_records=2) as session:
            batch, txn = await anext(session)
            for record in batch:
                await txn.send(OUT, record.value)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    batch, txn = await anext(session)
                    for record in batch:
                        await txn.send(OUT, record.value)
            handed = await copy(session, 1)
            assert handed in (numbers(2, 2), [])
        assert (await on.values())[:2] == numbers(2)

    theatre(program)


def test_all_who_wait_for_a_commit_are_told_and_who_stops_stops_nobody() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(2))
        async with on.session(max_poll_records=1) as session:
            batch, txn = await anext(session)
            for record in batch:
                await txn.send(OUT, record.value)
            waiting = [asyncio.create_task(session._work.next()) for _ in range(2)]
            on.cut()
            await asyncio.sleep(0.1)
            assert len(session._work._waiters) == 2, "both wait for the same commit"
            waiting[0].cancel()
            await asyncio.sleep(0.1)
            on.mend()
            given = await waiting[1]
            assert given is not None
            assert [record.value for record in given.batch] == numbers(1, 1)
            assert waiting[0].cancelled()
        assert await on.values() == numbers(1)

    theatre(program)


def cut_off_while_it_commits(after_s: float, monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """For longer than it waits for an answer; what is there in the end."""
    found: list[bytes | None] = []

    async def program(on: Theatre) -> None:
        await on.produce(*numbers(4))
        end = SessionProducer.commit_transaction
        calls = 0

        async def commit(self: SessionProducer) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                loop = asyncio.get_running_loop()
                loop.call_later(after_s, on.cut)
                loop.call_later(8, on.mend)
            await end(self)

        monkeypatch.setattr(SessionProducer, "commit_transaction", commit)
        async with on.session(
            max_poll_records=2,
            request_timeout_ms=1_000,
            delivery_timeout_ms=5_000,
            session_timeout_ms=30_000,
        ) as session:
            await copy(session, 4)
        found.extend(await on.values())

    theatre(program)
    monkeypatch.undo()
    return found


MOMENTS_S = [number * 0.0005 for number in range(8)]


@pytest.mark.parametrize("after_s", MOMENTS_S)
def test_a_commit_that_nobody_answers_is_resolved(
    after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on when it knows, and each record is there once."""
    assert cut_off_while_it_commits(after_s, monkeypatch) == numbers(4)


async def silence_is_no(self: SessionWork) -> None:
    try:
        await self._producer.commit_transaction()
    except UnknownOutcome as error:
        # Its own table would not let it go on; a new producer would.
        self._producer._transactional().state = ProducerState.UNINITIALIZED
        raise AbortableError("nobody has answered") from error


def test_who_takes_silence_for_a_no_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test before is good for."""
    found = []
    for after_s in MOMENTS_S:
        monkeypatch.setattr(SessionWork, "_until_known", silence_is_no)
        found.append(cut_off_while_it_commits(after_s, monkeypatch))
    assert numbers(2) + numbers(4) in found


def test_a_session_that_failed_can_be_started_again() -> None:
    """What nobody could say while it was cut off, the next one finds out."""

    async def program(on: Theatre) -> None:
        await on.produce(*numbers(4))
        how: dict[str, Any] = {
            "max_poll_records": 2,
            "request_timeout_ms": 1_000,
            "delivery_timeout_ms": 2_000,
            "default_api_timeout_ms": 2_000,
        }

        async def cut_off() -> None:
            async with on.session("first", **how) as session:
                async for batch, txn in session:
                    for record in batch:
                        await txn.send(OUT, record.value)
                    on.cut("first")

        with pytest.raises(ClientError):
            await cut_off()
        async with on.session("second", **how) as session:
            await copy(session, 4 - sum(await on.committed()))
        assert await on.values() == numbers(4)

    theatre(program)
