"""The producer for programs without asyncio: the same names, and every call blocks.

Records that one thread sends to a partition keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from onceflow.blocking.handover import BeginsAndEnds
from onceflow.blocking.receipts import promising
from onceflow.blocking.twin import Calls, Twin, blocking, plain
from onceflow.client import (
    MAY_ABORT,
    PreparedTransaction,
    ProducerMetrics,
    ProducerState,
    Transaction as TwinTransaction,
    TransactionEvent,
)
from onceflow.client.producer import producer as twin

T = TypeVar("T")
Method: TypeAlias = "Callable[[Producer], T]"


def _beginning(method: Callable[[twin.Producer], Coroutine[Any, Any, None]]) -> Method[None]:
    """The twin of a method that begins a transaction. If the call is interrupted before its caller
    knows that the transaction has begun, the transaction is aborted."""

    @wraps(method)
    def call(self: Producer) -> None:
        async def begin() -> int:
            await method(self._client)
            return self._client._transactional().number

        self._calls.hand_out(begin, self._abandon)

    return call


def _ending(
    method: Callable[[twin.Producer], Coroutine[Any, Any, T]], event: TransactionEvent
) -> Method[T]:
    """The twin of a method that ends a transaction. If the call is interrupted before its caller
    knows the outcome, the next call returns it."""

    @wraps(method)
    def call(self: Producer) -> T:
        async def end() -> tuple[T, int]:
            result = await method(self._client)
            return result, self._client._transactional().number

        return self._calls.hand_out(end, partial(self._not_heard, event))[0]

    return call


class Producer(Twin[twin.Producer]):
    """Sends records to the leaders of their partitions, in batches. Any thread may use it.

    Settings have Kafka's names: with dots in a mapping, with underscores as keywords.

    >>> with Producer(bootstrap) as producer:
    ...     receipt = producer.send("orders", b"paid", key=b"42")
    ...     print(receipt.result().offset)
    0
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        settings: Mapping[str, object] | None = None,
        **named: object,
    ) -> None:
        super().__init__(twin.Producer(bootstrap, {**(settings or {}), **named}))
        self._calls = BeginsAndEnds(self._loop)

    send = promising(twin.Producer.send)
    send_table = promising(twin.Producer.send_table)
    partitions_for = blocking(twin.Producer.partitions_for)
    flush = blocking(twin.Producer.flush)
    metrics = plain(twin.Producer.metrics)

    init_transactions = blocking(twin.Producer.init_transactions)
    begin_transaction = _beginning(twin.Producer.begin_transaction)
    send_offsets_to_transaction = blocking(twin.Producer.send_offsets_to_transaction)
    commit_transaction = _ending(twin.Producer.commit_transaction, TransactionEvent.COMMIT)
    abort_transaction = _ending(twin.Producer.abort_transaction, TransactionEvent.ABORT)
    prepare_transaction = _ending(twin.Producer.prepare_transaction, TransactionEvent.PREPARE)
    complete_transaction = blocking(twin.Producer.complete_transaction)
    open_transaction = blocking(twin.Producer.open_transaction)

    @property
    def measured(self) -> ProducerMetrics:
        """The metrics one by one; `metrics` gives them all at once."""
        return self._client.measured

    @property
    def prepared(self) -> PreparedTransaction:
        """The name of the prepared transaction; empty, and false, when there is none."""
        return self._client.prepared

    @property
    def state(self) -> ProducerState:
        """The state of a transactional producer."""
        return self._client.state

    async def _abandon(self, number: int) -> None:
        """Aborts a transaction whose beginning no thread has learned of."""
        client = self._client
        if client._transactional().number == number and client.state in MAY_ABORT:
            await client.abort_transaction()

    async def _not_heard(self, event: TransactionEvent, ended: tuple[object, int]) -> None:
        if self._client._ends is not None:
            self._client._ends.not_heard(event, number=ended[1])

    def transaction(self) -> Transaction:
        """A transaction for `with`: commits at the end of the block, aborts when an exception
        leaves it. The first one takes over the transactional id."""
        return Transaction(self._client.transaction(), self)


class Transaction(Calls[TwinTransaction]):
    """A transaction of a producer, made by `Producer.transaction` for one `with`.

    >>> with Producer(bootstrap, transactional_id="shop") as producer:
    ...     with producer.transaction() as transaction:
    ...         receipt = transaction.send("orders", b"paid")
    ...     print(receipt.result().offset, producer.state.name)
    0 READY
    """

    def __init__(self, client: TwinTransaction, producer: Producer) -> None:
        super().__init__(client, producer._loop)
        self._calls = producer._calls

    def start(self) -> None:
        """Does the same as entering `with`."""
        self._calls.hand_out(self._client.__aenter__, self._leave)

    def close(self) -> None:
        """Does the same as leaving `with`; a second call does nothing."""
        self._end(None, None, None)

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop.is_running:
            end = partial(self._client.__aexit__, kind, error, traceback)
            self._calls.end(end, self._leave)

    async def _leave(self, _: object) -> None:
        """Ends the transaction as an interrupted block does, when it is not known whether the
        thread was inside the block, or had begun to leave it."""
        interruption = asyncio.CancelledError()
        await self._client.__aexit__(type(interruption), interruption, None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(kind, error, traceback)

    send = promising(TwinTransaction.send)
    send_table = promising(TwinTransaction.send_table)
    send_offsets = blocking(TwinTransaction.send_offsets)
