"""The session for programs without asyncio: the same names, and every call blocks.

    with Session("localhost:9092", group_id="billing", topics=["orders"]) as session:
        for batch, txn in session:
            for record in batch:
                txn.send("bookings", b"booked " + record.value)

One thread goes through the batches; while it works on one, the client's own thread keeps the group
membership alive. When a thread is interrupted while it waits for a batch, that batch is not
committed: it is returned again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from onceflow.blocking.handover import Handover
from onceflow.blocking.receipts import promising
from onceflow.blocking.twin import Calls, Twin, blocking, plain
from onceflow.client import Batch, SessionTransaction as TwinTransaction
from onceflow.client.session import session as twin
from onceflow.types import TopicPartition


class SessionTransaction(Calls[TwinTransaction]):
    """The transaction that comes with a batch; use it until you ask for the next batch. The session
    begins it, adds the batch's offsets and ends it, so it needs no `with`.

    >>> from onceflow.blocking import Producer, Session
    >>> with Producer(bootstrap) as producer:
    ...     _ = producer.send("payments", b"what?")
    >>> settings = {"group.id": "billing", "auto.offset.reset": "earliest"}
    >>> names = {"topics": ["payments"], "dead_letter_topic": "orders"}
    >>> with Session(bootstrap, settings, **names) as session:
    ...     batch, txn = next(session)
    ...     for record in batch:
    ...         _ = txn.dead_letter(record, ValueError("not a number"))
    """

    send = promising(TwinTransaction.send)
    send_table = promising(TwinTransaction.send_table)
    send_offsets = blocking(TwinTransaction.send_offsets)
    dead_letter = promising(TwinTransaction.dead_letter)


class BlockingSessionItem(NamedTuple):
    """A batch, and the transaction for its results."""

    batch: Batch
    transaction: SessionTransaction


class Session(Twin[twin.Session]):
    """Reads batches as a member of a group, each with a transaction for its results.

    Settings have Kafka's names: with dots in a mapping, with underscores as keywords. They are
    those of a consumer, those of a producer, and a few of the session's own.

    >>> from onceflow.blocking import Producer
    >>> with Producer(bootstrap) as producer:
    ...     _ = producer.send("payments", b"42")
    >>> settings = {"group.id": "billing", "auto.offset.reset": "earliest"}
    >>> with Session(bootstrap, settings, topics=["payments"]) as session:
    ...     for batch, txn in session:
    ...         receipts = [txn.send("orders", b"paid " + record.value) for record in batch]
    ...         break
    >>> len(receipts), session.transactional_id
    (1, 'billing/0')
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        settings: Mapping[str, object] | None = None,
        **named: object,
    ) -> None:
        super().__init__(twin.Session(bootstrap, {**(settings or {}), **named}))
        self._handover = Handover(self._loop, lambda given: self._client._take_back(given.batch))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingSessionItem:
        try:
            return self._handover.hand_out(self._next)
        except StopAsyncIteration:
            raise StopIteration from None

    async def _next(self) -> BlockingSessionItem:
        batch, transaction = await self._client.__anext__()
        return BlockingSessionItem(batch, SessionTransaction(transaction, self._loop))

    stop = plain(twin.Session.stop)
    lag = blocking(twin.Session.lag)
    metrics = plain(twin.Session.metrics)

    @property
    def measured(self) -> twin.SessionMetrics:
        """The metrics of the consumer and of the producer, one by one."""
        return self._client.measured

    @property
    def transactional_id(self) -> str:
        """The session's transactional id: `group.id`, a slash, and its instance."""
        return self._client.transactional_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned now."""
        return self._loop.call(lambda: self._client.assignment)
