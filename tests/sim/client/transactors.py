"""Programs with transactions: they commit, abort, run out of time, are replaced, go on as zombies
and fight over one transactional id.

They do what the client's errors advise: abort after an `AbortableError`, never after an
`UnknownOutcome`, stop when they are fenced. One that is fenced first tries whether it can still do
something: it may not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from onceflow.client.admin.groups import committed_offsets
from onceflow.client.errors.requests import ClientError, FatalProducerError, Fenced, UnknownOutcome
from onceflow.client.producer.producer import Producer
from onceflow.client.transactions.states import ProducerState, WrongState
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.sim.client.history import OLD, Attempt, End, History, Looked, Used
from tests.sim.client.programs import PLACES, TRANSACTION_TIMEOUT_MS, Program
from tests.sim.client.proxy import Proxy
from tests.sim.txn.client import INPUT
from tests.sim.txn.history import NEVER

FATES: Final = ("commit", "commit", "commit", "commit", "abort", "abort", "crash", "late")
"""What is meant to become of transactions, drawn as from a pack of cards."""
_MAY_ABORT: Final = (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR)
_TRIES: Final = 3


class OlderProducer(Producer):
    """Speaks the protocol of brokers that have not finalized `transaction.version` 2."""

    async def init_transactions(self, *, keep_prepared: bool = False) -> None:
        machine = self._transactional()
        self._running()
        await self._driver.run(machine.init(OLD, keep_prepared=keep_prepared))
        self._adopt(machine)


class Transactor(Program):
    """Runs one transaction after the other under one transactional id."""

    def __init__(
        self,
        world: World,
        history: History,
        proxy: Proxy,
        name: str,
        *,
        transactional_id: str,
        generation: int,
    ) -> None:
        super().__init__(world, history, proxy, name)
        self.transactional_id = transactional_id
        self.generation = generation
        self.group = f"group of {transactional_id}"
        self._fates: list[str] = []
        self._starts = 0
        self._producer: Producer | None = None
        self._used = Used(name)

    async def run(self, transactions: int) -> None:
        for _ in range(transactions):
            await self._transaction(self._choose())
            await self.pause(0.3)

    async def finish(self) -> None:
        """Nothing is in the way any more: a new producer takes over and commits."""
        await self._drop()
        await self._transaction("commit", must_succeed=True)
        await self._drop()

    def _choose(self) -> str:
        if not self._fates:
            self._fates = list(FATES)
            self.rand.shuffle(self._fates)
        return self._fates.pop()

    # --- producers --------------------------------------------------------------------------------

    async def _ready(self) -> Producer:
        """The one that is there, or a new one that has taken over the transactional id."""
        producer = self._producer
        while producer is None or producer.state is ProducerState.UNINITIALIZED:
            if producer is None:
                self._starts += 1
                used = self._new_use()
                producer = await self._new_producer(used)
            else:  # an epoch was asked for and not given: it begins anew
                used = self._new_use()
                self.history.producers.append(used)
            self._used = used
            if not await self._take_over(producer, used):
                await self.limited("close", producer.close())
                producer = None
        self._producer = producer
        return producer

    def _new_use(self) -> Used:
        return Used(f"{self.name}.{self._starts}", self.transactional_id, self.generation)

    async def _new_producer(self, used: Used) -> Producer:
        settings: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
        }
        kind = OlderProducer if self.generation == OLD else Producer
        return await self.started(used, kind, **settings)

    async def _take_over(self, producer: Producer, used: Used) -> bool:
        """False when the producer can do nothing more."""
        used.init_asked_at = self.history.tick()
        while True:
            try:
                await self.limited("init_transactions", producer.init_transactions())
            except FatalProducerError as error:
                self._note(used, error)
                return False
            except ClientError:
                await self.pause(0.3)
            else:
                used.initialised_at = self.history.tick()
                return True

    def _note(self, used: Used, error: ClientError) -> None:
        if isinstance(error, Fenced):
            used.fenced_at = min(used.fenced_at, self.history.tick())

    async def _drop(self) -> None:
        """An orderly end."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self.limited("close", producer.close())

    async def _crash(self, producer: Producer) -> None:
        """The program is gone from one moment to the next."""
        self._producer = None
        self.forget(self._used)
        if producer._sender is not None:
            producer._sender.stop()
            await producer._sender.stopped()
        producer._cluster.close()

    # --- one transaction --------------------------------------------------------------------------

    async def _transaction(self, fate: str, *, must_succeed: bool = False) -> None:
        producer = await self._ready()
        used = self._used
        attempt = await self._begin(producer, used, must_succeed=must_succeed)
        if attempt is None:
            return

        async def work() -> None:
            await self._fill(producer, used, attempt)
            await self._finish(producer, attempt, fate)

        may_go_on = await self._guarded(producer, used, attempt, work)
        await self.all_told(used)
        if self._producer is producer and not may_go_on:
            await self._drop()

    async def _begin(
        self, producer: Producer, used: Used, *, must_succeed: bool = False
    ) -> Attempt | None:
        while True:
            try:
                await self.limited("begin", producer.begin_transaction())
                break
            except WrongState:
                raise
            except FatalProducerError as error:  # its next epoch was refused
                self._note(used, error)
                await self._drop()
                return None
            except ClientError:  # its next epoch was not given: it is asked for again
                await self.pause(0.3)
        attempt = Attempt(self.history.tick(), must_succeed)
        used.attempts.append(attempt)
        return attempt

    async def _guarded(
        self,
        producer: Producer,
        used: Used,
        attempt: Attempt,
        work: Callable[[], Awaitable[None]],
    ) -> bool:
        """Does a part of a transaction, and what errors advise; False: another producer has to."""
        try:
            await work()
        except UnknownOutcome as error:
            attempt.errors.append(repr(error))
            attempt.end = End.UNKNOWN
            return await self._resolve(producer, used, attempt)
        except FatalProducerError as error:
            await self._is_out(producer, used, attempt, error)
            return False
        except ClientError as error:
            attempt.errors.append(repr(error))
            return await self._abort(producer, used, attempt)
        return True

    async def _fill(self, producer: Producer, used: Used, attempt: Attempt) -> None:
        """Records and perhaps an offset; half of the programs look at their receipts."""
        for _ in range(1 + self.rand.randrange(5)):
            place = PLACES[self.rand.randrange(len(PLACES))]
            count = 1 + self.rand.randrange(3) if self.chance(5) else 1
            size = self.rand.randrange(150)
            rows = [self.record(used, place, size) for _ in range(count)]
            attempt.records += rows
            if count > 1:
                self.watch(used, self.settle_table(rows, await self.send_table(producer, rows)))
            else:
                self.watch(used, self.settle(rows[0], await self.send(producer, rows[0])))
            if self.chance(4):
                await self.pause(0.01)
        if self.chance(2):
            await self._commit_offset(producer, attempt)
        if self.chance(2):
            errors = await self.all_told(used)
            if errors:
                raise errors[0]

    async def _commit_offset(self, producer: Producer, attempt: Attempt) -> None:
        attempt.offset = self.history.tick()
        offsets = {TopicPartition(*INPUT): attempt.offset}
        committing = producer.send_offsets_to_transaction(offsets, self.group)
        await self.limited("send_offsets_to_transaction", committing)
        if self.chance(3):
            await self.pause(1.0)

    async def _finish(self, producer: Producer, attempt: Attempt, fate: str) -> None:
        if fate == "crash":
            await self._crash(producer)
            return
        if fate == "late":
            await asyncio.sleep(TRANSACTION_TIMEOUT_MS / 1000 * self.rand.uniform(0.8, 1.4))
        if fate == "abort":
            await self.limited("abort", producer.abort_transaction())
            attempt.end = End.ABORTED
        else:
            await self._commit(producer, attempt)

    async def _commit(self, producer: Producer, attempt: Attempt) -> None:
        attempt.commit_asked_at = min(attempt.commit_asked_at, self.history.tick())
        await self.limited("commit", producer.commit_transaction())
        attempt.end = End.COMMITTED
        attempt.committed_at = self.history.tick()
        if attempt.offset is not None:
            await self._look(producer)

    async def _look(self, producer: Producer) -> None:
        """At the group's offset, if it can be had."""
        asked_at = self.history.tick()
        try:
            asking = committed_offsets(producer._cluster, self.group)
            offsets = await self.limited("committed offsets", asking)
        except ClientError:
            return
        offset = offsets.get(TopicPartition(*INPUT), -1)
        self.history.looked.append(Looked(asked_at, self.history.tick(), self.group, offset))

    # --- trouble ----------------------------------------------------------------------------------

    async def _resolve(self, producer: Producer, used: Used, attempt: Attempt) -> bool:
        """Asks again about a commit that was not answered; or leaves it to the next producer."""
        for _ in range(self.rand.randrange(_TRIES)):
            try:
                await self._commit(producer, attempt)
            except UnknownOutcome as error:
                attempt.errors.append(repr(error))
            except FatalProducerError as error:
                await self._is_out(producer, used, attempt, error)
                return False
            except ClientError as error:
                attempt.errors.append(repr(error))
                return await self._abort(producer, used, attempt)
            else:
                return True
        return False

    async def _abort(self, producer: Producer, used: Used, attempt: Attempt) -> bool:
        """After an error that says that nothing was committed."""
        attempt.end = End.NOT_COMMITTED
        for _ in range(_TRIES):
            if producer.state not in _MAY_ABORT:
                return False
            try:
                await self.limited("abort", producer.abort_transaction())
            except FatalProducerError as error:
                await self._is_out(producer, used, attempt, error)
                return False
            except ClientError as error:
                attempt.errors.append(repr(error))
                await self.pause(0.3)
            else:
                attempt.end = End.ABORTED
                return True
        return False

    async def _is_out(
        self, producer: Producer, used: Used, attempt: Attempt, error: ClientError
    ) -> None:
        attempt.errors.append(repr(error))
        self._note(used, error)
        is_in_doubt = attempt.end in (End.OPEN, End.UNKNOWN) and error.outcome == "unknown"
        may_be = is_in_doubt and attempt.commit_asked_at != NEVER
        attempt.end = End.UNKNOWN if may_be else End.NOT_COMMITTED
        await self._insist(producer, used)

    async def _insist(self, producer: Producer, used: Used) -> None:
        """A producer that was told that it is out tries everything once more."""
        last = self.record(used, PLACES[0], 0)
        for name, call in (
            ("send", lambda: self.send(producer, last)),
            ("begin", producer.begin_transaction),
            ("commit", producer.commit_transaction),
            ("abort", producer.abort_transaction),
        ):
            try:
                await self.limited(name, call())
            except ClientError:
                continue
            self.history.complaints.append(f"{used.name} was told that it is out and could {name}")


class Zombie(Transactor):
    """Is replaced in the middle of a transaction, and goes on as if nothing had happened."""

    async def run(self, transactions: int) -> None:
        for _ in range(transactions):
            old = await self._ready()
            used = self._used
            attempt = await self._begin(old, used)
            if attempt is None:
                continue
            went_well = await self._guarded(old, used, attempt, self._part(old, used, attempt))
            if not went_well or attempt.end is not End.OPEN:
                await self.all_told(used)
                await self._drop()
                continue
            self._producer = None
            await self._transaction("commit")
            await self._guarded(old, used, attempt, self._part(old, used, attempt, commit=True))
            await self.all_told(used)
            await self.limited("close", old.close())
            await self.pause(0.3)

    def _part(
        self, producer: Producer, used: Used, attempt: Attempt, *, commit: bool = False
    ) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            await self._fill(producer, used, attempt)
            if commit:
                await self._commit(producer, attempt)

        return work
