"""One transaction as a block: committed at its end, aborted when it is left by an exception."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from onceflow.client.errors import AbortableError, ClientError
from onceflow.client.model import TopicPartition
from onceflow.client.receipts import Receipt, TableReceipt
from onceflow.client.txn_requests import GroupMember, OffsetToCommit
from onceflow.client.txn_states import State

if TYPE_CHECKING:
    import pyarrow as pa

    from onceflow.client.producer import Producer
    from onceflow.client.record_producer import Headers

_MAY_ABORT = (State.IN_TRANSACTION, State.ABORTABLE_ERROR)


class Transaction:
    """Made by `Producer.transaction`; used once.

    >>> from onceflow.client.model import TopicPartition
    >>> from onceflow.client.producer import Producer
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

    async def __aenter__(self) -> Self:
        if self._producer.state is State.UNINITIALIZED:
            await self._producer.init_transactions()
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                await self._producer.commit_transaction()
            except AbortableError:
                await self._abort()
                raise
        elif isinstance(error, Exception):
            await self._abort()
        else:
            await self._abort_before(error)

    async def _abort_before(self, error: BaseException) -> None:
        """Who is cancelled or interrupted has to see that, whatever becomes of the abort."""
        try:
            await self._abort()
        except ClientError as problem:
            error.add_note(f"the transaction was not aborted: {problem}")

    async def _abort(self) -> None:
        # After a commit that nobody answered there is nothing to abort, and in no other state but
        # these there is anything left.
        if self._producer.state in _MAY_ABORT:
            await self._producer.abort_transaction()

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
        return await self._producer.send_table(topic, table, partition=partition)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetToCommit], group: str | GroupMember
    ) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        await self._producer.send_offsets_to_transaction(offsets, group)
