"""What a session does behind its loop: polls, begins, commits, and when that fails aborts, goes
back and does it again.

Exactly once depends on the order. InitProducerId comes first, which ends the transaction that an
earlier session of this name left open; only then does the consumer join the group and fetch the
committed offsets. The other way round it could read offsets from before that transaction's commit,
and process its records a second time. Everything that ends a transaction happens here, one after
the other, in a task that a cancelled caller does not cut short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceflow.client.consumer import RebalanceListener
from onceflow.client.errors import (
    AbortableError,
    BrokerError,
    ClientError,
    CommitFailed,
    ConnectionClosed,
    FatalProducerError,
    FencedMember,
    UnknownOutcome,
)
from onceflow.client.net import Backoff
from onceflow.client.session.batch import Batch
from onceflow.client.session.clients import SessionConsumer, SessionProducer
from onceflow.client.session.errors import BatchRefused, BatchUndone, NoProgress
from onceflow.client.session.settings import SessionSettings
from onceflow.client.session.states import (
    AbortVerdict,
    SessionStage,
    SessionStep,
    after,
    judge,
    refusal_in,
)
from onceflow.client.session.transaction import SessionTransaction, end, fatal
from onceflow.client.transactions import MAY_ABORT, ProducerState
from onceflow.runtime import Clock, Rand
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)
_A_WHILE_S: Final = 0.5
_ASKED_AGAIN: Final = 3
"""Times `delivery.timeout.ms`, after which a commit or an abort without an answer is left to the
next session of this name."""
_MOST_ABORTS: Final = 5
_GIVE_UP_S: Final = 10.0
"""So long a session that is left by an exception waits for its abort."""
_PARTING_S: Final = 1.0
"""So long one whose close was cut short tries to tell its group."""


class SessionItem(NamedTuple):
    """A batch, and the transaction in which its outcome is written."""

    batch: Batch
    transaction: SessionTransaction


class SessionWork(RebalanceListener):
    """The work of one `Session`. The two are apart because this one is the consumer's rebalance
    listener and holds the state between batches, while `Session` is only what users call."""

    def __init__(
        self,
        settings: SessionSettings,
        consumer: SessionConsumer,
        producer: SessionProducer,
        clock: Clock,
        rand: Rand,
    ) -> None:
        self.stage = SessionStage.CLOSED
        self.is_stopping = False
        self._settings = settings
        self._consumer = consumer
        self._producer = producer
        self._clock = clock
        self._interval_s = settings.commit_interval_ms / 1000
        self._backoff = Backoff(consumer.settings.retry, rand)
        self._ending: asyncio.Task[bool] | None = None
        """The last one."""
        self._endings: set[asyncio.Task[bool]] = set()
        """Each waits for the one before."""
        self._waiters: list[asyncio.Future[None]] = []
        """Of callers that wait for these."""
        self._transaction: SessionTransaction | None = None
        self._batch: Batch | None = None
        self._ahead: Batch | None = None
        """What is handed out next, if it is what the next poll brings."""
        self._reads_records = False
        """Whether the last batch was gone through record by record."""
        self._firsts: dict[TopicPartition, int] = {}
        """Where the open transaction began to read."""
        self._records = 0
        self._due_at = 0.0
        self._aborts = 0
        """In a row."""
        self._pause_s = 0.0

    async def start(self) -> None:
        await self._producer.start()
        try:
            await self._init()
            await self._consumer.start()
            self._consumer.subscribe(self._settings.topics, self, pattern=self._settings.pattern)
        except BaseException:
            await self._close_clients()
            raise
        self._happened(SessionStep.STARTED)

    def _happened(self, step: SessionStep) -> None:
        self.stage = after(self.stage, step)

    async def _init(self) -> None:
        await self._producer.init_transactions()

    async def _renew(self) -> None:
        """So that a session that had nothing to do for weeks goes on when something comes; not if
        another one has taken over meanwhile."""
        for attempt in range(1, _ASKED_AGAIN + 1):
            try:
                await self._producer.renew()
            except FatalProducerError as error:
                raise fatal(error, self._producer) from error
            except ClientError as error:
                if attempt == _ASKED_AGAIN:
                    raise
                _log.warning("asking again for an epoch of group %r: %s", self._group_id, error)
            else:
                return

    # --- batches --------------------------------------------------------------------------------

    async def next(self) -> SessionItem | None:
        """The next batch, however long it takes; None when the session is to stop. A caller that
        asks is done with the batch before."""
        if self.stage not in (SessionStage.IDLE, SessionStage.FINISHED):
            self._finished()
        while True:
            await self._settle()
            if self.stage is SessionStage.FINISHED and (self.is_stopping or self._is_due()):
                await self._uncut(self._commit_finished)
                continue
            if self.is_stopping:
                return None
            if self._pause_s:
                pause_s, self._pause_s = self._pause_s, 0.0
                await asyncio.sleep(pause_s)
            if self._producer.state is ProducerState.UNINITIALIZED:
                await self._init()
            table = await self._poll()
            if table is None:
                continue
            batch = self._batch_of(table)
            if self.stage is not SessionStage.IDLE or not self._producer.needs_renewal:
                return self._hand_out(batch)
            # A caller that stops waiting for the epoch must not have taken records along.
            self._consumer.go_back(batch.firsts())
            await self._renew()

    def _finished(self) -> None:
        self._happened(SessionStep.ASKED)
        if self._batch is not None:
            self._reads_records, self._batch = self._batch.was_read, None
        if self._transaction is not None:
            end(self._transaction)

    def _is_due(self) -> bool:
        return (
            self._records >= self._settings.commit_max_records
            or self._clock.monotonic() >= self._due_at
        )

    async def _poll(self) -> Any:
        wait_s = _A_WHILE_S
        if self.stage is SessionStage.FINISHED:
            wait_s = max(0.0, min(wait_s, self._due_at - self._clock.monotonic()))
        try:
            return await self._consumer.poll_table(wait_s, max_rows=self._settings.max_poll_records)
        except BrokerError as error:
            if error.code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
            # Of a member that is gone, perhaps for good: its transaction ends by its timeout.
            _log.warning("group %r waits for another transaction: %s", self._group_id, error)
            return None

    def _prepare(self) -> None:
        """Makes the next batch while brokers are waited for. Nothing of it counts before the poll:
        what is not this member's any more, or is read again, is not what that brings."""
        table = self._consumer.prepare(self._settings.max_poll_records)
        self._ahead = None if table is None else Batch(table)
        if self._ahead is not None:
            self._ahead.prepare(records=self._reads_records)

    def _batch_of(self, table: pa.Table) -> Batch:
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None and ahead.table() is table else Batch(table)

    def _hand_out(self, batch: Batch) -> SessionItem:
        """Without an await: a caller that was cancelled must not have taken records along."""
        if self.stage is SessionStage.IDLE:
            self._producer.begin_at_once()
            self._firsts, self._records = {}, 0
            self._due_at = self._clock.monotonic() + self._interval_s
        self._firsts = batch.firsts() | self._firsts
        self._records += len(batch)
        given = SessionTransaction(self._producer, self._settings.dead_letter_topic)
        self._transaction, self._batch = given, batch
        self._happened(SessionStep.GIVEN)
        return SessionItem(batch, given)

    def take_back(self, batch: Batch) -> None:
        """It has not reached the caller that asked for it: nothing was sent for it, and what is
        committed ends before it."""
        if self._batch is batch and self.stage is SessionStage.AT_WORK:
            self._consumer.go_back(batch.firsts())
            self._finished()

    @property
    def _group_id(self) -> str:
        return self._settings.group_id

    # --- rebalances, in the midst of a poll: all batches are done -------------------------------

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """The last moment to commit what was read of them."""
        await self._uncut(self._commit_finished)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Others have them, and begin where the last commit was."""
        await self._uncut(self._undo_lost)

    # --- ends -----------------------------------------------------------------------------------

    async def _uncut(self, work: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """To its end, also if the caller stops waiting: then the next call waits. All ends are made
        here, one after the other, so that each sees what became of the one before."""
        ending = self._told_of(self._ending, work)
        self._ending = asyncio.get_running_loop().create_task(ending)
        self._endings.add(self._ending)
        self._ending.add_done_callback(self._ended)
        return await self._settle()

    async def _told_of(
        self, before: asyncio.Task[bool] | None, work: Callable[[], Coroutine[Any, Any, bool]]
    ) -> bool:
        """Wakes its waiters at once, and not some turns of the loop later as a shield does."""
        try:
            if before is not None:
                await asyncio.wait([before])
            return await work()
        finally:
            self._tell()

    def _tell(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _ended(self, ending: asyncio.Task[bool]) -> None:
        """A task that was cancelled before its first step has woken no waiter."""
        self._endings.discard(ending)
        _looked_at(ending)
        self._tell()

    async def _settle(self) -> bool:
        """Waits for what an earlier call has left; how that ended."""
        ending = self._ending
        if ending is None:
            return True
        while not ending.done():
            # One for each caller: one that stops waiting must not stop the others.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._ending is ending:
            self._ending = None
        if ending.cancelled():  # and the caller is not
            raise ConnectionClosed("the session was closed before its transaction had ended")
        return ending.result()

    async def _commit_finished(self) -> bool:
        """What is done, if it was not ended meanwhile."""
        return self.stage is not SessionStage.FINISHED or await self._commit_or_abort()

    async def _undo_lost(self) -> bool:
        if self._producer.state is ProducerState.UNCLEAR_COMMIT:
            return await self._commit_finished()  # brokers were asked before: it is not undone
        if self.stage is SessionStage.FINISHED:
            await self._undo(CommitFailed(f"partitions of group {self._group_id!r} were lost"))
        return True

    async def _abort_open(self) -> bool:
        if self.stage is not SessionStage.IDLE:
            await self._abort()
        return True

    async def _commit_or_abort(self) -> bool:
        """Whether it was committed; else it was aborted, and is to be done again."""
        try:
            await self._commit()
        except FencedMember:
            await self._abort()
            raise
        except (AbortableError, CommitFailed) as error:
            await self._undo(self._producer.reason or error)
            return False
        if self.stage is not SessionStage.CLOSED:
            self._happened(SessionStep.COMMITTED)
        self._consumer.has_committed(self._firsts)
        self._aborts = 0
        self._backoff.reset()
        return True

    async def _commit(self) -> None:
        """The offsets, fenced by the member's generation, and all that was sent, or nothing."""
        try:
            if (
                self._producer.state is not ProducerState.UNCLEAR_COMMIT
            ):  # else all of it has gone before
                await self._send_rest()
            # As soon as the end is asked for: nothing else is to be done until the answer comes.
            asyncio.get_running_loop().call_soon(self._prepare)
            await self._until_known()
        except FatalProducerError as error:
            raise fatal(error, self._producer) from error

    async def _send_rest(self) -> None:
        producer, consumer = self._producer, self._consumer
        member = consumer.group_metadata()
        try:
            await producer.commit_with(consumer.behind(self._firsts), member)
        except AbortableError as error:
            if (refusal := refusal_in(error)) is not None:
                consumer.refused(refusal, member)
            raise
        await producer.flush()

    async def _until_known(self) -> None:
        """A commit without an answer is asked about again, and never undone."""
        for attempt in range(1, _ASKED_AGAIN + 1):
            try:
                return await self._producer.commit_transaction()
            except UnknownOutcome as error:
                if attempt == _ASKED_AGAIN:
                    raise
                _log.warning("asking again: %s", error)
        return None

    async def _undo(self, reason: BaseException) -> None:
        """Nothing of the transaction counts; its records come again. Raises when that would be of
        no use."""
        verdict = judge(reason)
        await self._abort()
        told = f"the transaction of group {self._group_id!r} was aborted: {reason}"
        if verdict is AbortVerdict.RAISE:
            raise BatchRefused(told) from reason
        if verdict is AbortVerdict.REPEAT:
            self._aborts += 1
            if self._aborts >= _MOST_ABORTS:
                raise NoProgress(f"{self._aborts} times in a row {told}") from reason
            self._pause_s = self._backoff.next_s()
        _log.warning("%s; its records are read again", told)

    async def _abort(self) -> None:
        """And back to where it began to read."""
        try:
            for attempt in range(1, _ASKED_AGAIN + 1):
                if self._producer.state not in MAY_ABORT:
                    break
                try:
                    await self._producer.abort_transaction()
                except AbortableError as error:
                    if attempt == _ASKED_AGAIN:
                        raise
                    _log.warning("aborting again: %s", error)
        except FatalProducerError as error:
            raise fatal(error, self._producer) from error
        finally:
            if (
                self.stage is not SessionStage.CLOSED
            ):  # else this is cut short, and nothing comes again
                self._consumer.go_back(self._firsts)
                self._happened(SessionStep.ABORTED)

    # --- closing --------------------------------------------------------------------------------

    async def close(self, *, commit: bool) -> None:
        """Commits what is done, or aborts; then leaves the group. A caller that is
        cancelled meanwhile cuts only the waiting short: everything ends at once."""
        if self.stage is SessionStage.CLOSED:
            await self._close_clients()  # a start may be under way, or another close
            return
        has_ended = False
        try:
            has_ended = await self._end(commit=commit)
        except Exception:
            has_ended = True  # and what it raises says how
            raise
        finally:
            self.stage = SessionStage.CLOSED
            await (self._leave() if has_ended else self._leave_at_once())

    async def _leave(self) -> None:
        try:
            await self._close_clients()
        finally:
            await self._stop_ending()

    async def _leave_at_once(self) -> None:
        """Cancels what is under way, before the clients close: they would wait for it as long as it
        takes, and it would go on beside them."""
        for ending in self._endings:
            ending.cancel()
        try:
            await self._producer.close_at_once()
        finally:
            try:
                await self._consumer.close(commit=False, timeout_s=_PARTING_S)
            finally:
                await self._stop_ending()

    async def _close_clients(self) -> None:
        close_producer = self._producer.close_at_once  # when cancelled: wait for nothing more
        try:
            await self._consumer.close(commit=False)
            close_producer = self._producer.close
        except Exception:
            close_producer = self._producer.close
            raise
        finally:
            await close_producer()

    async def _stop_ending(self) -> None:
        """Without its clients they can do nothing more."""
        endings, self._ending = list(self._endings), None
        for ending in endings:
            ending.cancel()
        if endings:
            await asyncio.wait(endings)

    async def _end(self, *, commit: bool) -> bool:
        """Whether the transaction has ended; else it is not waited for any longer."""
        if not commit:
            return await self._give_up()
        await self._settle()
        if self.stage is SessionStage.AT_WORK:
            self._finished()
        if self.stage is SessionStage.FINISHED and not await self._uncut(self._commit_finished):
            raise BatchUndone(f"the last batch of group {self._group_id!r} was not committed")
        return True

    async def _give_up(self) -> bool:
        """The session is left for a reason, which must not be hidden by what goes wrong here, nor
        by how long it takes: brokers end the transaction, too."""
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                await self._abort_last()
        except TimeoutError:
            _log.warning(
                "group %r: the open transaction was not ended within %g s; its timeout will end it",
                self._group_id,
                _GIVE_UP_S,
            )
            return False
        return True

    async def _abort_last(self) -> None:
        try:
            await self._settle()
        except ClientError as error:
            _log.warning("a session was left while it failed: %s", error)
        if self._transaction is not None:
            end(self._transaction)
        try:
            await self._uncut(self._abort_open)
        except ClientError as error:
            _log.warning("the open transaction was not aborted; its timeout will end it: %s", error)


def _looked_at(ending: asyncio.Task[bool]) -> None:
    """Also when no caller waits any more."""
    if not ending.cancelled():
        ending.exception()
