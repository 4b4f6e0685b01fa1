"""A transaction as a block: which error is seen when the body and the end of it both fail."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceflow.client.errors.requests import AbortableError, ClientError, Fenced
from onceflow.client.producer.producer import Producer
from onceflow.client.producer.transaction import Transaction
from onceflow.client.transactions.states import ProducerState


class Stubborn:
    """A producer whose transactions cannot be ended well."""

    def __init__(self, problem: ClientError) -> None:
        self.state = ProducerState.READY
        self._block: object = None
        self.aborts = 0
        self._problem = problem

    def _transactional(self) -> Any:
        return SimpleNamespace(number=1)

    async def _settled(self) -> None:
        """It always is."""

    async def begin_transaction(self) -> None:
        self.state = ProducerState.IN_TRANSACTION

    async def commit_transaction(self) -> None:
        self.state = ProducerState.ABORTABLE_ERROR
        raise AbortableError("the commit was refused")

    async def abort_transaction(self) -> None:
        self.aborts += 1
        raise self._problem


def block(producer: Stubborn) -> Transaction:
    return Transaction(cast(Producer, producer))


async def waits_in(producer: Stubborn, entered: asyncio.Event) -> None:
    async with block(producer):
        entered.set()
        await asyncio.Event().wait()


def test_who_is_cancelled_sees_that_and_not_the_abort() -> None:
    producer = Stubborn(AbortableError("the abort was not answered"))

    async def main() -> asyncio.CancelledError:
        entered = asyncio.Event()
        task = asyncio.create_task(waits_in(producer, entered))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as seen:
            await task
        assert task.cancelled()
        return seen.value

    seen = asyncio.run(main())
    assert producer.aborts == 1
    assert seen.__notes__ == ["the transaction was not aborted: the abort was not answered"]


def test_a_timeout_around_the_block_is_a_timeout() -> None:
    producer = Stubborn(Fenced("another one has taken over"))

    async def main() -> None:
        async with asyncio.timeout(0.01):
            await waits_in(producer, asyncio.Event())

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert producer.aborts == 1


@pytest.mark.parametrize("body", [KeyboardInterrupt, SystemExit])
def test_so_does_who_is_interrupted(body: type[BaseException]) -> None:
    async def main() -> BaseException:
        try:
            await _fail_in(block(Stubborn(AbortableError("no"))), body())
        except BaseException as error:
            return error
        raise AssertionError("nothing was raised")

    assert isinstance(asyncio.run(main()), body)


async def _fail_in(transaction: Any, error: BaseException) -> None:
    async with transaction:
        raise error


def test_an_error_of_the_body_is_behind_the_one_of_the_abort() -> None:
    with pytest.raises(Fenced) as seen:
        asyncio.run(_fail_in(block(Stubborn(Fenced("taken over"))), ValueError("mine")))
    assert isinstance(seen.value.__context__, ValueError)


def test_a_refused_commit_is_seen_if_the_abort_goes_well() -> None:
    class Abortable(Stubborn):
        async def abort_transaction(self) -> None:
            self.aborts += 1

    producer = Abortable(AbortableError("unused"))

    async def main() -> None:
        async with block(producer):
            pass

    with pytest.raises(AbortableError, match="the commit was refused"):
        asyncio.run(main())
    assert producer.aborts == 1
