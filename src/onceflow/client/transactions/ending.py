"""Ends the transactions of a producer: every commit and every abort comes through here.

An end runs to its outcome whether or not its caller waits for it. It runs in the caller's task;
when that is cancelled, it goes on in a task of its own. From its first moment the transaction takes
no more records (`states.SENDS`). What a second caller gets, by what it asks for (columns) and what
is in progress (rows):

| | a commit | a prepare | an abort |
|---|---|---|---|
| commit | shares its outcome | waits, then commits | `TransactionAborted` |
| prepare | is refused | shares its outcome | `TransactionAborted` |
| abort | takes its place, as long as no broker was asked; then waits | takes its place | shares |
| complete | waits, then asks if it is unclear | waits, then commits or aborts | waits |
| begin, close | wait | wait | wait |

A close that is cut short stops all ends: a request that was not sent by then is never sent, also if
the producer is started again, and all callers that wait get an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from functools import partial
from typing import Final, NamedTuple

from onceflow.client.errors import ClientError, ConnectionClosed, TransactionAborted
from onceflow.client.transactions.machine import TransactionMachine
from onceflow.client.transactions.retrier import Operation
from onceflow.client.transactions.states import ProducerState, TransactionEvent, WrongState
from onceflow.runtime import Clock

MAY_ABORT: Final = (
    ProducerState.IN_TRANSACTION,
    ProducerState.FLUSHING,
    ProducerState.DROPPING,
    ProducerState.ABORTABLE_ERROR,
)
"""There is a transaction, and no broker was asked to commit it."""
_OVER: Final = (ProducerState.READY, ProducerState.USED_UP)


class Ways(NamedTuple):
    """How a producer does what an end needs."""

    flush: Callable[[], Awaitable[None]]
    """Until all that was sent has an outcome."""
    drop: Callable[[TransactionAborted], Awaitable[None]]
    """What was not sent yet is not; until brokers have answered the rest."""
    ask: Callable[[Operation[None]], Awaitable[None]]
    counted: Callable[[TransactionEvent, float], None]
    """So long an end took that went well."""


class TransactionEnd:
    """One that was asked for."""

    __slots__ = ("began", "error", "event", "is_replaced", "waiters")

    def __init__(self, event: TransactionEvent, began: float) -> None:
        self.event = event
        self.began = began
        self.error: BaseException | None = None
        self.is_replaced = False
        """By an abort."""
        self.waiters: list[asyncio.Future[None]] = []


class TransactionEnds:
    """Belongs to one producer, from its start to its close."""

    def __init__(self, machine: TransactionMachine, clock: Clock, ways: Ways) -> None:
        self._machine = machine
        self._clock = clock
        self._ways = ways
        self._end: TransactionEnd | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """In which ends go on whose callers have gone: the one under way, and those that it has
        replaced."""
        self._is_closed = False
        self._unheard: TransactionEvent | None = None
        """How the last transaction ended, if no caller has heard of it."""

    @property
    def is_under_way(self) -> bool:
        return self._end is not None

    async def run(self, event: TransactionEvent) -> None:
        """Ends the open transaction so, or says how it has ended by another's wish."""
        number = self._machine.number
        while (under_way := self._end) is not None:
            is_shared = under_way.event is event
            if (
                not is_shared
                and event is TransactionEvent.ABORT
                and self._machine.state in MAY_ABORT
            ):
                under_way.is_replaced = True
                break
            await self._until_over(under_way)
            if is_shared:
                self._unheard = None
                return _tell(under_way)
            if under_way.error is None:
                _refuse(event, under_way.event)
            if self._machine.number != number:
                raise WrongState(f"{event.value}: the transaction that this was for is over")
        self._check_open()
        unheard, self._unheard = self._unheard, None
        if unheard is event:
            return None
        if unheard is not None:
            _refuse(event, unheard)
        return await self._run(event)

    async def _run(self, event: TransactionEvent) -> None:
        self._machine.refuse_sends(event)
        end = self._end = TransactionEnd(event, self._clock.monotonic())
        try:
            await self._work(end)
        except asyncio.CancelledError:
            self._go_on(end)
            raise
        except BaseException as error:
            self._finish(end, error)
            raise
        self._finish(end, None)

    def _go_on(self, end: TransactionEnd) -> None:
        """Without the caller, which was cancelled."""
        if self._is_closed:
            self._finish(end, self._closed())
            return
        task = asyncio.get_running_loop().create_task(self._work(end))
        self._tasks.add(task)
        task.add_done_callback(partial(self._went_on, end))

    def _went_on(self, end: TransactionEnd, task: asyncio.Task[None]) -> None:
        """Also when it was cancelled before its first step: others wait for it."""
        self._tasks.discard(task)
        if task.cancelled():
            self._finish(end, self._closed())
            return
        error = task.exception()  # of a defect the next call would tell, too
        if error is None:
            self._unheard = end.event
        self._finish(end, error)

    async def _work(self, end: TransactionEnd) -> None:
        """From wherever it was left: the machine knows."""
        try:
            if end.event is TransactionEvent.ABORT:
                await self._abort()
            else:
                await self._commit(end)
        except ClientError:
            if not end.is_replaced:
                raise
        if end.is_replaced:
            raise TransactionAborted("the transaction was aborted instead")

    async def _abort(self) -> None:
        machine = self._machine
        if machine.state is ProducerState.DROPPING:
            await self._ways.drop(
                TransactionAborted("the transaction was aborted before this was acknowledged")
            )
            self._check_open()
        if machine.state not in _OVER:
            await self._ways.ask(machine.abort())

    async def _commit(self, end: TransactionEnd) -> None:
        machine = self._machine
        if machine.state in (ProducerState.FLUSHING, ProducerState.DROPPING):
            await self._ways.flush()
        if end.is_replaced:
            return
        # The last batches may have got their outcome from `close` and not from a leader: then the
        # transaction must not be committed.
        self._check_open()
        if end.event is TransactionEvent.PREPARE:
            machine.prepare()
        elif machine.state is ProducerState.UNCLEAR_COMMIT:
            await self._ways.ask(machine.resolve())
        elif machine.state not in _OVER:
            await self._ways.ask(machine.commit())

    def _finish(self, end: TransactionEnd, error: BaseException | None) -> None:
        end.error = error
        if self._end is end:
            self._end = None
        if error is None:
            self._ways.counted(end.event, self._clock.monotonic() - end.began)
        waiters, end.waiters = end.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- callers that come later ----------------------------------------------------------------

    async def settled(self) -> None:
        """Returns when no end is under way."""
        while self._end is not None:
            await self._until_over(self._end)

    async def _until_over(self, end: TransactionEnd) -> None:
        # One future for each caller: cancelling a shared one would cancel the wait of all.
        waiter = asyncio.get_running_loop().create_future()
        end.waiters.append(waiter)
        await waiter

    def not_heard(self, event: TransactionEvent, *, number: int) -> None:
        """The transaction of that number has ended so, and no caller has heard of it; the next one
        that asks for the same end does."""
        if self._end is None and self._machine.number == number:
            self._unheard = event

    def begun(self) -> None:
        """A new transaction: how the one before ended is of no interest any more."""
        self._unheard = None

    def close(self) -> None:
        """Ends that go on without a caller are cancelled, and those that a caller waits for go no
        step further; brokers end the transaction by its timeout."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> ClientError:
        """Why an end has not come to its own."""
        if self._machine.state is ProducerState.UNCLEAR_COMMIT and self._machine.error is not None:
            return copy(self._machine.error)
        message = "the producer was closed before the transaction had ended"
        return ConnectionClosed(message, outcome="not applied")


def _tell(end: TransactionEnd) -> None:
    if end.error is not None:
        raise copy(end.error)  # its traceback is of another call


def _refuse(wanted: TransactionEvent, was: TransactionEvent) -> None:
    """The open transaction has ended otherwise than it was to."""
    if was is TransactionEvent.ABORT:
        raise TransactionAborted(f"{wanted.value}: the transaction was aborted")
    if was is TransactionEvent.COMMIT:
        raise WrongState(f"{wanted.value}: the transaction was committed")
