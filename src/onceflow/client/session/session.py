"""Consume, transform, produce, exactly once: one transaction commits a batch's results and offsets.

    async with Session("localhost:9092", group_id="billing", topics=["orders"]) as session:
        async for batch, txn in session:
            for record in batch:
                await txn.send("bookings", b"booked " + record.value)

An application that asks for the next batch is done with the one before: what it sent and the
group's offsets are committed before the next batch arrives, and also when the loop ends or is left
by `break`. An exception aborts the transaction: consumers see nothing of it, and the batch is read
again. The session does the same by itself after a rebalance, or an error that an abort settles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from onceflow.client.address import (
    comma_separated,
)
from onceflow.client.consumer import ConsumerMetrics, PartitionLag
from onceflow.client.producer import ProducerMetrics
from onceflow.client.session.batch import Batch
from onceflow.client.session.clients import SessionConsumer, SessionProducer
from onceflow.client.session.session_work import SessionItem, SessionWork
from onceflow.client.session.settings import SessionSettings
from onceflow.client.session.states import SessionStage, WrongStep
from onceflow.runtime import Clock, Net, Rand, RealClock, RealRand
from onceflow.types import TopicPartition


class SessionMetrics(NamedTuple):
    """The metrics of a session's consumer and producer."""

    consumer: ConsumerMetrics
    producer: ProducerMetrics


class Session:
    """Reads batches as a member of a group, each with a transaction for its results.

    Settings have Kafka's names: with dots in a mapping, with underscores as keywords. They are
    those of a consumer, those of a producer, and a few of the session's own. A session belongs to
    one event loop, and one task goes through its batches.

    >>> from onceflow import Producer
    >>> async def main() -> None:
    ...     async with Producer(bootstrap) as producer:
    ...         await producer.send("payments", b"42")
    ...     settings = {"group.id": "billing", "auto.offset.reset": "earliest"}
    ...     async with Session(bootstrap, settings, topics=["payments"]) as session:
    ...         async for batch, txn in session:
    ...             for record in batch:
    ...                 receipt = await txn.send("orders", b"paid " + record.value)
    ...             break
    ...     print((await receipt).offset, session.transactional_id)
    >>> asyncio.run(main())
    0 billing/0
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        net: Net | None = None,
        clock: Clock | None = None,
        rand: Rand | None = None,
        **named: object,
    ) -> None:
        if bootstrap is not None:
            named["bootstrap_servers"] = bootstrap
        self.settings = SessionSettings.of(settings, **named)
        self._clock = clock = clock or RealClock()
        self._rand = rand = rand or RealRand()
        self._consumer = SessionConsumer(None, self.settings.consumer, net=net, rand=rand)
        self._producer = SessionProducer(
            None, self.settings.producer, net=net, clock=clock, rand=rand
        )
        self._work = self._new_work()
        self._is_spent = False
        """Whether `_work` was closed: `start` then makes a new one."""

    def __repr__(self) -> str:
        where = comma_separated(self._producer.settings.bootstrap_servers)
        state = "closed" if self._is_spent else "not started"
        if self._work.stage is not SessionStage.CLOSED:
            state = self._work.stage.value
        return f"<Session of {where}, transactional.id {self.transactional_id!r}, {state}>"

    def _new_work(self) -> SessionWork:
        """The state of one life of a session, from its start to its close."""
        return SessionWork(self.settings, self._consumer, self._producer, self._clock, self._rand)

    async def start(self) -> None:
        """Takes over the transactional id, which aborts the transaction that an earlier session of
        this group and instance left open; then joins the group. Works again after `close`; raises
        `WrongStep` when the session was started and not closed."""
        if self._producer.is_started:
            raise WrongStep("start: the session was started already, and not closed since")
        if self._is_spent:
            self._work, self._is_spent = self._new_work(), False
        await self._work.start()

    async def close(self, *, commit: bool = True) -> None:
        """Commits the current batch, or aborts it when `commit` is false. Raises `BatchUndone` when
        it could not be committed."""
        self._is_spent = self._is_spent or self._work.stage is not SessionStage.CLOSED
        await self._work.close(commit=commit)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(commit=error is None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionItem:
        item = await self._work.next()
        if item is None:
            raise StopAsyncIteration
        return item

    def _take_back(self, batch: Batch) -> None:
        """Returns a batch once more that did not reach the caller (`onceflow.blocking`)."""
        self._work.take_back(batch)

    def stop(self) -> None:
        """Ends the loop once the current batch is done and committed: for a handler of SIGTERM."""
        self._work.is_stopping = True

    @property
    def transactional_id(self) -> str:
        """The session's transactional id: `group.id`, a slash, and its instance."""
        return self.settings.transactional_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned now."""
        return self._consumer.assignment

    @property
    def measured(self) -> SessionMetrics:
        """The metrics of the consumer and of the producer, one by one."""
        return SessionMetrics(self._consumer.measured, self._producer.measured)

    def metrics(self) -> Mapping[str, Mapping[str, float]]:
        """The metrics under Kafka's names, those of the `consumer` and those of the `producer`."""
        return {name: each.snapshot() for name, each in self.measured._asdict().items()}

    async def lag(
        self, partitions: Iterable[TopicPartition] = (), *, exact: bool = False
    ) -> dict[TopicPartition, PartitionLag]:
        """Like `Consumer.lag`."""
        return await self._consumer.lag(partitions, exact=exact)
