"""The session for programs without asyncio: the same names, and every call blocks.

    with Session("localhost:9092", group_id="billing", topics=["orders"]) as session:
        for batch, txn in session:
            for record in batch:
                txn.send("bookings", b"booked " + record.value)

One thread goes through the batches; while it works on one, the member of the group is looked after.
A batch that comes for a thread which was interrupted meanwhile is not committed: it comes again.
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
    """Handed out with a batch, and good until the next one is asked for. The session begins and
    ends it, and adds the offsets of the batch: so it is no block for `with`.

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
    """A batch, and the transaction in which its outcome is written."""

    batch: Batch
    transaction: SessionTransaction


class Session(Twin[twin.Session]):
    """Settings go by Kafka's names, in a mapping with dots or as keywords with underscores: those
    of a consumer, of a producer, and a few of its own.

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
        """What its consumer and its producer have counted, one by one."""
        return self._client.measured

    @property
    def transactional_id(self) -> str:
        """Of all transactions of this session: `group.id`, a slash, and its instance."""
        return self._client.transactional_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What is read now."""
        return self._loop.call(lambda: self._client.assignment)
