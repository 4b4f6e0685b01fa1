"""How a transaction ends while others use its producer, and while those who asked for the end go
away: each record is in the transaction that it was sent for, or is refused; never in the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from onceflow.client.codec.transactions import (
    AddOffsets,
    InitProducerIdRequest,
    TransactionRequest,
    TxnOffsetCommit,
)
from onceflow.client.errors.requests import ClientError, TransactionAborted
from onceflow.client.transactions.driver import TransactionDriver
from onceflow.client.transactions.retrier import Reply, RequestAttempt
from onceflow.client.transactions.states import ProducerState, WrongState
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import RawClient, Running
from tests.unit.client.producer.simulated_producers import play, producer
from tests.unit.client.transactions.closing import committed, is_in

Send = Callable[..., Awaitable[Any]]


class Failed(Exception):
    """Of one of those who work on a transaction."""


async def work(send: Send, name: bytes, *, fails_at: int | None = None) -> None:
    for number in range(40):
        if number == fails_at:
            raise Failed
        await send("t", b"%s %d" % (name, number))
        await asyncio.sleep(0.0002)


NAMES = (b"a", b"b", b"c", b"d")
ALL = sorted(b"%s %d" % (name, number) for name in NAMES for number in range(40))


@pytest.mark.parametrize(
    ("by_block", "fails_at"),
    # Where nothing has gone to a broker yet an abort takes no time, and only the block can tell.
    [(True, number) for number in range(0, 40, 6)] + [(False, number) for number in (15, 24, 36)],
)
def test_work_that_is_done_again_after_an_abort_is_there_once(
    by_block: bool, fails_at: int
) -> None:
    """The others do not know that one of them has failed, and go on."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id", linger_ms=1) as ours:
            for attempt in range(2):
                fails = fails_at if attempt == 0 else None
                with suppress(Failed):
                    async with ours.transaction() as transaction:
                        send: Send = transaction.send if by_block else ours.send
                        await asyncio.gather(
                            *(
                                work(send, name, fails_at=fails if name == b"c" else None)
                                for name in NAMES
                            )
                        )
        assert sorted(await committed(client)) == ALL

    play(script)


# --- those who come too late ----------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_who_sends_while_a_transaction_ends_is_refused(end: str) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id", linger_ms=1) as ours:
            await ours.init_transactions()
            await ours.begin_transaction()
            accepted = []

            async def send_on() -> None:
                for number in range(10_000):
                    await ours.send("t", b"%d" % number)
                    accepted.append(b"%d" % number)
                    await asyncio.sleep(0.0001)

            sending = asyncio.create_task(send_on())
            await asyncio.sleep(0.01)
            await getattr(ours, end)()
            with pytest.raises((WrongState, TransactionAborted), match="is being"):
                await sending
            await ours.begin_transaction()
            await ours.send("t", b"next")
            await ours.commit_transaction()
        expected = accepted if end == "commit_transaction" else []
        assert await committed(client) == [*expected, b"next"]

    play(script)


def test_who_waits_for_a_topic_while_the_transaction_ends_is_refused() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id") as ours:
            await ours.init_transactions()
            await ours.begin_transaction()
            late = asyncio.create_task(ours.send("t", b"of the first"))
            await asyncio.sleep(0.00001)  # it asks where the topic is
            assert not late.done()
            await ours.abort_transaction()  # at once: no broker knows of it
            await ours.begin_transaction()
            with pytest.raises(WrongState, match="is over"):
                await late
            await ours.send("t", b"of the second")
            await ours.commit_transaction()
        assert await committed(client) == [b"of the second"]

    play(script)


def test_a_block_that_is_over_takes_nothing_into_the_next() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id") as ours:
            async with ours.transaction() as first:
                await first.send("t", b"first")
            async with ours.transaction() as second:
                await second.send("t", b"second")
                for late in (first.send("t", b"late"), first.send_offsets({}, "g")):
                    with pytest.raises(WrongState, match="is over"):
                        await late
        assert await committed(client) == [b"first", b"second"]

    play(script)


def test_offsets_that_wait_for_their_turn_do_not_go_into_the_next() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id") as ours:
            await ours.init_transactions()
            await ours.begin_transaction()
            await (await ours.send("t", b"first"))
            first = asyncio.create_task(ours.send_offsets_to_transaction(OFFSETS, "others"))
            await asyncio.sleep(0)
            second = asyncio.create_task(ours.send_offsets_to_transaction(OFFSETS, "late"))
            await asyncio.sleep(0)  # it waits for the one before
            first.cancel()
            # As a loop would that gives each their turn: the end and the next before the second.
            machine = ours._transactional()
            machine.state = ProducerState.READY
            await ours.begin_transaction()
            with pytest.raises(WrongState, match="is over"):
                await second
            await ours.abort_transaction()

    play(script)


OFFSETS = {TopicPartition("t", 0): 7}


# --- those who want different ends ----------------------------------------------------------------


@pytest.mark.parametrize("moment_us", range(0, 12_000, 400))
def test_a_commit_and_an_abort_at_once_have_one_outcome(moment_us: int) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id", linger_ms=1000) as ours:
            await ours.init_transactions()
            await ours.begin_transaction()
            await ours.send("t", b"first")
            commit = asyncio.create_task(outcome(ours.commit_transaction()))
            await asyncio.sleep(moment_us / 1_000_000)
            abort = asyncio.create_task(outcome(ours.abort_transaction()))
            ends = await commit, await abort
            assert is_in(ours, ProducerState.READY)
            async with ours.transaction() as transaction:
                await transaction.send("t", b"next")
        found = await committed(client)
        if found == [b"first", b"next"]:
            assert ends == (None, WrongState)
        else:
            assert found == [b"next"]
            assert ends == (TransactionAborted, None)

    play(script)


async def outcome(work: Coroutine[Any, Any, None]) -> type[ClientError] | None:
    try:
        await work
    except ClientError as error:
        return type(error)
    return None


# --- those who go away ----------------------------------------------------------------------------


async def cut(work: Coroutine[Any, Any, None], after_us: int) -> bool:
    """Whether it was."""
    task = asyncio.create_task(work)
    await asyncio.sleep(after_us / 1_000_000)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


MOMENTS_US = range(100, 12_000, 600)


@pytest.mark.parametrize("moment_us", MOMENTS_US)
def test_a_commit_goes_on_and_says_how_it_ended_when_asked_again(moment_us: int) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id", linger_ms=1000) as ours:
            await ours.init_transactions()
            await ours.begin_transaction()
            await ours.send("t", b"first")
            if await cut(ours.commit_transaction(), moment_us):
                with pytest.raises(WrongState):
                    await ours.send("t", b"too late")
                await ours.commit_transaction()
            assert ours.metrics()["txn-commit-total"] == 1
            with pytest.raises(WrongState):
                await ours.commit_transaction()
        assert await committed(client) == [b"first"]

    play(script)


@pytest.mark.parametrize("moment_us", MOMENTS_US)
def test_who_aborts_after_a_commit_that_was_cut_short_knows_what_happened(moment_us: int) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id", linger_ms=1000) as ours:
            await ours.init_transactions()
            await ours.begin_transaction()
            await ours.send("t", b"first")
            await cut(ours.commit_transaction(), moment_us)
            aborted = await outcome(ours.abort_transaction()) is None
            assert await committed(client) == ([] if aborted else [b"first"])

    play(script)


@pytest.mark.parametrize("moment_us", MOMENTS_US)
def test_a_block_that_is_cancelled_at_its_end_is_whole_and_the_next_one_works(
    moment_us: int,
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id", linger_ms=1000) as ours:
            await ours.init_transactions()

            async def block(value: bytes) -> None:
                async with ours.transaction() as transaction:
                    await transaction.send("t", value)

            was_cut = await cut(block(b"first"), moment_us)
            await block(b"second")
            found = await committed(client)
            assert found in ([b"second"], [b"first", b"second"])
            assert was_cut or len(found) == 2

    play(script)


async def version_1() -> int:
    return 1


def answered_late(patch: pytest.MonkeyPatch, *kinds: type[TransactionRequest]) -> None:
    """A second after they were asked, others at once."""
    ask_at_once = TransactionDriver._ask

    async def ask_late(driver: TransactionDriver, ask: RequestAttempt) -> Reply:
        if isinstance(ask.request, kinds):
            await asyncio.sleep(1)
        return await ask_at_once(driver, ask)

    patch.setattr(TransactionDriver, "_ask", ask_late)


@pytest.mark.parametrize("by_block", [False, True])
def test_an_abort_that_is_cut_short_in_its_renewal_is_done_and_the_next_one_works(
    by_block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the older protocol, where an abort needs an epoch."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id") as ours:
            monkeypatch.setattr(ours._cluster, "transaction_version", version_1)
            await ours.init_transactions()
            await ours.begin_transaction()
            await (await ours.send("t", b"first"))
            epoch = ours._transactional().identity.producer_epoch
            with monkeypatch.context() as patch:
                answered_late(patch, InitProducerIdRequest)
                assert await cut(ours.abort_transaction(), 500_000)
                assert is_in(ours, ProducerState.USED_UP)
                await ours.abort_transaction()  # it says how it ended
                if by_block:
                    async with ours.transaction() as transaction:
                        await transaction.send("t", b"next")
                else:
                    await ours.begin_transaction()
                    await ours.send("t", b"next")
                    await ours.commit_transaction()
            assert ours._transactional().identity.producer_epoch == epoch + 1
        assert await committed(client) == [b"next"]

    play(script)


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_that_are_cancelled_while_their_transaction_is_aborted_are_cancelled(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id") as ours:
            if version == 1:
                monkeypatch.setattr(ours._cluster, "transaction_version", version_1)
            await ours.init_transactions()
            await ours.begin_transaction()
            answered_late(monkeypatch, AddOffsets, TxnOffsetCommit)
            offsets = asyncio.create_task(ours.send_offsets_to_transaction(OFFSETS, "g"))
            await asyncio.sleep(0.1)
            abort = asyncio.create_task(ours.abort_transaction())
            await asyncio.sleep(0.1)
            assert is_in(ours, ProducerState.DROPPING)
            offsets.cancel()
            await asyncio.wait([offsets])
            assert offsets.cancelled()
            await abort
            assert is_in(ours, ProducerState.READY)

    play(script)


# --- those who want to write elsewhere ------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_transaction_that_is_about_to_end_is_not_handed_out(
    end: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t")
        async with producer(world, transactional_id="id", linger_ms=0) as ours:
            if version == 1:
                monkeypatch.setattr(ours._cluster, "transaction_version", version_1)
            await ours.init_transactions()
            await ours.begin_transaction()
            await (await ours.send("t", b"first"))
            answered_late(monkeypatch, AddOffsets, TxnOffsetCommit)
            offsets = asyncio.create_task(ours.send_offsets_to_transaction(OFFSETS, "g"))
            await asyncio.sleep(0.1)
            opening = asyncio.create_task(ours.open_transaction([TopicPartition("t", 0)]))
            await asyncio.sleep(0.1)  # it waits for its turn
            ending = asyncio.create_task(getattr(ours, end)())
            with pytest.raises((WrongState, TransactionAborted)):
                await opening
            await offsets
            await ending
            assert is_in(ours, ProducerState.READY)

    play(script)
