"""Several tasks that use one producer as if each had it for itself: they begin, send, commit and
abort, in blocks and without, and do not always wait for what they have asked for.

What is promised is little, and must hold: a transaction is whole. All that was accepted in it is
there, or nothing is; as whoever ended it was told; and what was refused or cut short is nowhere.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pyarrow as pa

from onceflow.client.errors.requests import ClientError, FatalProducerError
from onceflow.client.producer.producer import Producer
from onceflow.client.transactions.states import ProducerState
from onceflow.errors import InvariantViolated
from onceflow.types import TopicPartition
from tests.sim.sweeps.sending import Stage, Strike, Waits, play
from tests.sim.sweeps.sending_programs import Sender
from tests.sim.txn.history import PromiseBroken

USERS: Final = 4
STEPS: Final = 40
COMMITTED, ABORTED = "committed", "aborted"


class Users(Sender):
    """Of one producer."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._rand = self.world.rand.fork("users")
        self._accepted: dict[int, list[bytes]] = defaultdict(list)
        """By the number of the transaction for which it was sent."""
        self._told: dict[int, set[str]] = defaultdict(set)
        self._rows = 0

    async def run(self) -> None:
        await self.make_topics()
        little = {"batch_size": 200, "max_request_size": 300, "buffer_memory": 700}
        self.ours = self.producer(transactional_id="id", linger_ms=1, **little)
        await self.ours.start()
        await self.ours.init_transactions()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(USERS):
                    group.create_task(self._use())
        except* (InvariantViolated, FatalProducerError) as errors:
            raise PromiseBroken(str(errors.exceptions[0])) from None
        await self._come_to_rest()
        await self.ours.close()
        self._judge(await self.committed())

    @property
    def _number(self) -> int:
        return self.ours._transactional().number

    async def _use(self) -> None:
        calls: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self._begin,
            self._begin,
            *[self._send] * 8,
            self._send_table,
            self._send_offsets,
            self._commit,
            self._abort,
            self._block,
            self._block,
        )
        for _ in range(STEPS):
            await asyncio.sleep(self._rand.uniform(0.0, 0.003) * self._rand.randrange(2))
            call = calls[self._rand.randrange(len(calls))]
            try:
                if self._rand.randrange(4):
                    await call()
                else:
                    async with asyncio.timeout(self._rand.uniform(0.0, 0.004)):
                        await call()
            except FatalProducerError:
                raise
            except (ClientError, TimeoutError):
                continue

    async def _begin(self) -> None:
        await self.ours.begin_transaction()

    def _row(self) -> bytes:
        self._rows += 1
        return b"%d" % self._rows

    async def _send(self, through: Any = None) -> None:
        value = self._row()
        topic = ("a", "b")[self._rand.randrange(2)]
        number = self._number if through is None else through._number
        await (through or self.ours).send(topic, value + bytes(30))
        self._accepted[number].append(value)

    async def _send_table(self) -> None:
        values = [self._row() for _ in range(3)]
        number = self._number
        await self.ours.send_table("b", pa.table({"value": values}))
        self._accepted[number] += values

    async def _send_offsets(self) -> None:
        offsets = {TopicPartition("in", 0): self._number}
        await self.ours.send_offsets_to_transaction(offsets, "group")

    async def _commit(self) -> None:
        number = self._number
        await self.ours.commit_transaction()
        self._told[number].add(COMMITTED)

    async def _abort(self) -> None:
        number = self._number
        await self.ours.abort_transaction()
        self._told[number].add(ABORTED)

    async def _block(self) -> None:
        fails = self._rand.randrange(3) == 0
        number = 0
        try:
            async with self.ours.transaction() as transaction:
                number = self._number
                # Nobody waits for them if one fails.
                await asyncio.gather(*(self._work(transaction, fails) for _ in range(3)))
        except KeyError:
            return
        self._told[number].add(COMMITTED)

    async def _work(self, transaction: Any, fails: bool) -> None:
        for _ in range(4):
            await self._send(transaction)
            await asyncio.sleep(self._rand.uniform(0.0, 0.002))
            if fails and self._rand.randrange(4) == 0:
                raise KeyError

    async def _come_to_rest(self) -> None:
        await asyncio.sleep(1)
        ours: Producer = self.ours
        await ours._settled()
        if ours.state is ProducerState.UNCLEAR_COMMIT:
            await ours.commit_transaction()
        elif ours.state is not ProducerState.READY:
            await self._abort()

    def _judge(self, found: dict[str, list[bytes]]) -> None:
        visible = [each.rstrip(b"\0") for topic in ("a", "b") for each in found[topic]]
        if len(set(visible)) != len(visible):
            raise PromiseBroken("a row is there twice")
        for number, rows in sorted(self._accepted.items()):
            there = [row for row in rows if row in visible]
            told = self._told[number]
            if len(told) > 1:
                raise PromiseBroken(f"transaction {number} was told to be both")
            if there and len(there) < len(rows):
                raise PromiseBroken(f"of transaction {number} {len(there)} of {len(rows)} rows")
            if rows and told and (COMMITTED in told) != bool(there):
                raise PromiseBroken(f"transaction {number} was {told}, and {there} are there")
        known = {row for rows in self._accepted.values() for row in rows}
        if stray := set(visible) - known:
            raise PromiseBroken(f"{sorted(stray)} were never accepted")


def use(seed: int) -> None:
    """Raises `PromiseBroken`."""

    async def program(stage: Stage) -> None:
        await Users(stage).run()

    play(program, Waits(), Strike(), seed)
