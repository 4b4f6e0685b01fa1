"""A transaction as a block: commits at its end, aborts when an exception leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from onceflow.client.codec import GroupMember, OffsetToCommit
from onceflow.client.errors import AbortableError, ClientError
from onceflow.client.producer.receipts import Receipt, TableReceipt
from onceflow.client.transactions import MAY_ABORT, ProducerState, WrongState
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from onceflow.client.producer.batch import Headers
    from onceflow.client.producer.producer import Producer


class Transaction:
    """A transaction of a producer, made by `Producer.transaction` for one `async with`.

    >>> from onceflow import Producer, TopicPartition
    >>> async def main() -> None:
    ...     async with Producer(bootstrap, transactional_id="shop") as producer:
    ...         async with producer.transaction() as transaction:
    ...             receipt = await transaction.send("orders", b"paid")
    ...             await transaction.send_offsets({TopicPartition("payments", 0): 43}, "shop")
    ...         print(receipt.is_done, producer.state.name)
    >>> asyncio.run(main())
    True READY
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._machine = producer._transactional()
        self._number: int | None = None
        """The producer's number for it: a late `send` must not go into the next transaction."""

    def __repr__(self) -> str:
        is_open = self._producer._block is self
        state = "open" if is_open else "not begun" if self._number is None else "over"
        return f"<Transaction of {self._producer.settings.transactional_id!r}, {state}>"

    async def __aenter__(self) -> Self:
        producer = self._producer
        await producer._settled()
        if producer.state is ProducerState.ABORTABLE_ERROR and producer._block is None:
            await producer.abort_transaction()  # an earlier block failed to abort it
        if producer.state is ProducerState.UNINITIALIZED:
            await producer.init_transactions()
        await producer.begin_transaction()
        self._machine = producer._transactional()  # the producer may have been started again
        self._number = self._machine.number
        producer._block = self
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self._commit()
            elif isinstance(error, Exception):
                await self._abort()
            else:
                await self._abort_before(error)
        finally:
            if self._producer._block is self:
                self._producer._block = None

    async def _commit(self) -> None:
        self._check()
        try:
            await self._producer.commit_transaction()
        except AbortableError:
            await self._abort()
            raise
        except asyncio.CancelledError as cancelled:
            await self._abort_before(cancelled)
            raise

    async def _abort_before(self, error: BaseException) -> None:
        """Aborts when the block was cancelled or interrupted: that is what the caller has to see,
        even if the abort fails."""
        if self._producer.state in (ProducerState.COMMITTING, ProducerState.UNCLEAR_COMMIT):
            error.add_note("brokers were asked to commit: commit_transaction() tells the outcome")
        try:
            await self._abort()
        except ClientError as problem:
            error.add_note(f"the transaction was not aborted: {problem}")

    async def _abort(self) -> None:
        # Never after a commit that was not answered: the coordinator may have committed. And only
        # this transaction: another task may have begun the next one since.
        is_mine = self._number == self._machine.number
        if is_mine and self._producer.state in MAY_ABORT:
            await self._producer.abort_transaction()

    def _check(self) -> None:
        """Raises when the transaction is over: other tasks may still try to send in it."""
        if self._number != self._machine.number:
            raise WrongState("send: the transaction of this block is over")

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Receipt:
        """As `Producer.send`."""
        if self._number != self._machine.number:  # as `_check`, without a call for every record
            self._check()
        receipt = self._producer._gather(topic, value, key, partition, timestamp_ms, headers)
        if receipt is not None:
            return receipt
        return await self._producer.send(
            topic,
            value,
            key=key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=headers,
        )

    async def send_table(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> TableReceipt:
        """As `Producer.send_table`."""
        self._check()
        return await self._producer.send_table(topic, table, partition=partition)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetToCommit], group: str | GroupMember
    ) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        self._check()
        await self._producer.send_offsets_to_transaction(offsets, group)
