"""A session: a batch and what it becomes are committed together, whatever happens on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from onceflow.client.errors.consumer import WrongUse
from onceflow.client.net.stream import Stream
from onceflow.client.session.errors import BatchRefused, NoProgress, SessionFenced
from onceflow.client.session.states import WrongStep
from onceflow.client.transactions.states import WrongState
from onceflow.types import TopicPartition
from tests.unit.client.session.simulated_sessions import DEAD, OUT, Theatre, copy, numbers, theatre


def test_a_batch_is_committed_before_the_next_one_is_there() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(6))
        batches = 0
        async with on.session(max_poll_records=2) as session:
            async for batch, txn in session:
                assert await on.values() == numbers(2 * batches)
                assert await on.committed() == ([2 * batches] if batches else [])
                for record in batch:
                    await txn.send(OUT, record.value)
                batches += 1
                if batches == 3:
                    break
            assert await on.committed() == [4]
        assert await on.values() == numbers(6)
        assert await on.committed() == [6]

    theatre(program)


def test_the_loop_may_be_entered_again() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(4))
        async with on.session(max_poll_records=2) as session:
            await copy(session, 2)
            await copy(session, 2)
        assert await on.values() == numbers(4)

    theatre(program)


async def work_and_fail(on: Theatre, **settings: Any) -> None:
    async with on.session(max_poll_records=2, **settings) as session:
        async for batch, txn in session:
            for record in batch:
                await txn.send(OUT, record.value)
                if record.offset == 3:
                    raise KeyError("three")


def test_an_exception_aborts_its_batch_and_no_other() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(6))
        with pytest.raises(KeyError, match="three"):
            await work_and_fail(on)
        assert await on.values() == numbers(2)
        assert await on.committed() == [2]
        async with on.session(max_poll_records=2) as session:
            assert await copy(session, 4) == numbers(4, 2)
        assert await on.values() == numbers(6)

    theatre(program)


def test_an_exception_aborts_all_batches_of_its_transaction() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(6))
        with pytest.raises(KeyError):
            await work_and_fail(on, commit_interval_ms=1_000)
        assert await on.values() == []
        assert await on.committed() == []

    theatre(program)


def test_several_polls_share_a_transaction_until_the_interval_is_over() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(6))
        async with on.session(max_poll_records=1, commit_interval_ms=1_000) as session:
            seen = 0
            async for batch, txn in session:
                for record in batch:
                    await txn.send(OUT, record.value)
                seen += 1
                await asyncio.sleep(0.4)
                # Begun at 0, 1.2 and 2.4 seconds or so: when the next is asked for it is over.
                assert await on.committed() == ([seen - 1 - (seen - 1) % 3] if seen > 3 else [])
                if seen == 6:
                    break
        assert await on.values() == numbers(6)

    theatre(program)


def test_the_interval_ends_also_when_nothing_comes() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(2))
        async with on.session(commit_interval_ms=1_000) as session:
            batch, txn = await anext(session)
            await txn.send(OUT, b"%d" % len(batch))
            waiting = asyncio.get_running_loop().create_task(anext(session))
            await asyncio.sleep(0.5)
            assert await on.committed() == []
            async with asyncio.timeout(5):
                while await on.committed() != [2]:
                    await asyncio.sleep(0.1)
            assert await on.values() == [b"2"]
            assert not waiting.done()
            session.stop()
            with pytest.raises(StopAsyncIteration):
                await waiting

    theatre(program)


def test_so_many_records_are_committed_also_before_that() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(6))
        async with on.session(
            max_poll_records=1, commit_interval_ms=30_000, commit_max_records=2
        ) as session:
            seen = 0
            async for _, _ in session:
                seen += 1
                assert await on.committed() == ([(seen - 1) // 2 * 2] if seen > 2 else [])
                if seen == 6:
                    break

    theatre(program)


def test_offsets_are_behind_what_no_reader_sees() -> None:
    """The marker of a transaction in the input is no lag."""

    async def program(on: Theatre) -> None:
        await on.produce(*numbers(2))
        async with on.session() as session:
            await copy(session, 2)
        async with on.session(group_id="next", topics=[OUT], instance="n") as following:
            async for batch, _ in following:
                assert [record.value for record in batch] == numbers(2)
                break
        async with on.consumer(group_id="next") as reader:
            found = await reader.committed([TopicPartition(OUT, 0)])
        assert [each.offset for each in found.values()] == [3]

    theatre(program)


def test_tables_in_and_out() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(5))
        async with on.session() as session:
            async for batch, txn in session:
                values: list[Any] = batch.table().column("value").to_pylist()
                await txn.send_table(OUT, pa.table({"value": [b"<" + each for each in values]}))
                break
        assert await on.values() == [b"<" + each for each in numbers(5)]

    theatre(program)


def test_dead_letters_are_part_of_the_transaction() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(b"1", b"x", b"3")
        async with on.session(dead_letter_topic=DEAD) as session:
            async for batch, txn in session:
                for record in batch:
                    try:
                        await txn.send(OUT, b"%d" % (10 * int(record.value or b"")))
                    except ValueError as error:
                        await txn.dead_letter(record, error)
                assert await on.values(DEAD) == []
                break
        assert await on.values() == [b"10", b"30"]
        (letter,) = await on.written(DEAD)
        headers = dict(letter.headers)
        assert letter.value == b"x"
        assert headers.pop("error", b"").startswith(b"invalid literal for int()")  # type: ignore[union-attr]  # it has a value
        assert headers == {
            "error.class": b"ValueError",
            "source.topic": b"orders",
            "source.partition": b"0",
            "source.offset": b"1",
        }

    theatre(program)


def test_dead_letters_need_a_topic() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(b"1")
        async with on.session() as session:
            batch, txn = await anext(session)
            with pytest.raises(WrongUse, match=r"set dead\.letter\.topic"):
                await txn.dead_letter(next(iter(batch)), "bad")

    theatre(program)


def test_a_transaction_is_over_with_its_batch() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(2))
        async with on.session(max_poll_records=1, commit_interval_ms=10_000) as session:
            _, first = await anext(session)
            await anext(session)
            with pytest.raises(WrongState, match="the batch of this transaction is done"):
                await first.send(OUT, b"late")
            with pytest.raises(WrongState):
                await first.send_table(OUT, pa.table({"value": [b"late"]}))
            with pytest.raises(WrongState):
                await first.send_offsets({TopicPartition("orders", 0): 1}, "other")

    theatre(program)


def test_offsets_of_another_group_go_along() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(2))
        async with on.session() as session:
            async for _, txn in session:
                await txn.send_offsets({TopicPartition("orders", 0): 1}, "other")
                break
        async with on.consumer(group_id="other") as reader:
            (found,) = (await reader.committed([TopicPartition("orders", 0)])).values()
            assert found.offset == 1

    theatre(program)


def test_stop_ends_the_loop_when_the_batch_is_done() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(4))
        seen = 0
        async with on.session(max_poll_records=1) as session:
            async for batch, txn in session:
                seen += len(batch)
                if seen == 2:
                    session.stop()
                for record in batch:
                    await txn.send(OUT, record.value)
            assert seen == 2
            assert await on.committed() == [2]
        assert await on.values() == numbers(2)

    theatre(program)


def test_it_runs_only_inside_its_block() -> None:
    async def program(on: Theatre) -> None:
        session = on.session()
        with pytest.raises(WrongStep, match="not running"):
            await anext(session)
        async with session:
            pass
        await session.close()
        with pytest.raises(WrongStep):
            await anext(session)

    theatre(program)


# --- what goes wrong ------------------------------------------------------------------------------


def test_another_session_of_the_same_instance_takes_over() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(2))
        async with on.session("old", max_poll_records=1) as old:
            _, txn = await anext(old)
            await txn.send(OUT, b"of the old one")
            async with on.session("new") as new:
                with pytest.raises(SessionFenced, match="'shop/0'") as told:
                    await anext(old)
                assert "give each its own instance" in told.value.advice
                await copy(new, 2)
        assert await on.values() == numbers(2)

    theatre(program)


def test_what_would_be_the_same_again_is_raised() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(2))

        async def too_much() -> None:
            async with on.session(max_request_size=8 << 20) as session:
                async for _, txn in session:
                    await txn.send(OUT, bytes(2 << 20))

        with pytest.raises(BatchRefused, match=r"MESSAGE_TOO_LARGE") as told:
            await too_much()
        assert "dead letters" in told.value.advice
        assert await on.committed() == []
        async with on.session() as session:
            assert await copy(session, 2) == numbers(2)

    theatre(program)


def test_work_that_takes_too_long_is_done_again_and_not_for_ever() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(2))
        tries = 0

        async def slow(seconds: float) -> None:
            nonlocal tries
            async with on.session(transaction_timeout_ms=5_000, linger_ms=0) as session:
                async for batch, txn in session:
                    tries += 1
                    for record in batch:
                        await txn.send(OUT, record.value)
                    await asyncio.sleep(seconds if tries % 3 else 0)
                    for record in batch:
                        await txn.send(OUT, record.value)
                    if not tries % 3:
                        break

        await slow(20)
        assert tries == 3
        assert await on.values() == numbers(2) + numbers(2)
        await on.produce(*numbers(1))
        tries = -1_000_000

        async def always_slow() -> None:
            async with on.session(transaction_timeout_ms=5_000, linger_ms=0) as session:
                async for batch, txn in session:
                    for record in batch:
                        await txn.send(OUT, record.value)
                    await asyncio.sleep(20)

        with pytest.raises(NoProgress, match="5 times in a row") as told:
            await always_slow()
        assert "transaction.timeout.ms" in told.value.advice

    theatre(program)


def test_where_a_broker_lets_batches_wait_offsets_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    ask, ask_then = Stream.ask, Stream.ask_then

    def noting_ask(self: Stream, head: Any, *rest: Any) -> Any:
        asked.append(head.name)
        return ask(self, head, *rest)

    def noting_ask_then(self: Stream, then: Any, head: Any, *rest: Any) -> None:
        asked.append(head.name)
        ask_then(self, then, head, *rest)

    monkeypatch.setattr(Stream, "ask", noting_ask)
    monkeypatch.setattr(Stream, "ask_then", noting_ask_then)

    async def program(on: Theatre) -> None:
        await on.produce(*numbers(6))
        async with on.session(max_poll_records=2) as session:
            await copy(session, 2)
            session._producer._running().commit_pacing._pause_s = 0.001
            await copy(session, 2)
            asked.clear()
            await copy(session, 2)
        of_transactions = ("PRODUCE", "TXN_OFFSET_COMMIT", "END_TXN")
        found = [name for name in asked if name in of_transactions]
        # The first end is that of the batch before; what was gathered then is there already.
        assert found[found.index("END_TXN") + 1 :] == ["TXN_OFFSET_COMMIT", "PRODUCE", "END_TXN"]
        assert await on.values() == numbers(6)

    theatre(program)
