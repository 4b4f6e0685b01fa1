"""Receipts: what `send` returns. Awaiting one gives the record's offset; all records of a batch
share one outcome."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator, Iterable
from typing import Any, Final, NamedTuple

from onceflow.client.errors import ClientError, DeliveryFailed
from onceflow.client.producer.batch import Delivered, ProducerBatch
from onceflow.errors import InvariantViolated
from onceflow.types import TopicPartition

_made = tuple.__new__  # skips the named tuple's own constructor, which is slow Python


class Delivery(NamedTuple):
    """Where a record is in the log."""

    topic: str
    partition: int
    offset: int
    """-1 when the leader has the record but did not say at which offset."""
    timestamp: int
    """The broker's append time, if the topic uses that; else -1."""


class Receipt(NamedTuple):
    """Awaiting it gives the record's `Delivery`, or raises the reason why it failed.

    Any number of tasks may await a receipt, or none: the record is sent either way. When a record
    fails and its receipt was not awaited, `flush` and `close` raise the error.

    >>> from onceflow import Producer
    >>> async def main() -> None:
    ...     async with Producer(bootstrap) as producer:
    ...         receipts = [await producer.send("orders", value) for value in (b"a", b"b")]
    ...         await producer.flush()
    ...         print([receipt.is_done for receipt in receipts])
    ...         print([(await receipt).offset for receipt in receipts])
    >>> asyncio.run(main())
    [True, True]
    [0, 1]
    """

    batch: ProducerBatch
    number: int
    """The record's index in the batch."""

    def __repr__(self) -> str:
        batch, number = self.batch.locate(self.number)
        if isinstance(batch.outcome, Delivered):
            return f"<Receipt of {batch.partition}, offset {batch.outcome.offset_of(number)}>"
        state = "not acknowledged yet" if batch.outcome is None else f"failed: {batch.outcome}"
        return f"<Receipt of {batch.partition}, {state}>"

    @property
    def is_done(self) -> bool:
        """Whether the record has an outcome, so that awaiting the receipt returns at once."""
        return self.batch.locate(self.number)[0].is_done

    def __await__(self) -> Generator[Any, None, Delivery]:
        batch, number = self
        if batch.outcome is None:
            batch, number = batch.locate(number)
            while not batch.is_done:
                yield from settled(batch).__await__()
                batch, number = batch.locate(number)  # it may have been split
        outcome = batch.outcome
        if outcome.__class__ is not Delivered:
            return _delivery(batch, number)
        # The same as `_delivery`, inlined because it runs for every record.
        topic, partition = batch.partition
        offset, timestamp = outcome
        if offset >= 0:
            offset += number
        return _made(Delivery, (topic, partition, offset, timestamp))


def _delivery(batch: ProducerBatch, number: int) -> Delivery:
    outcome = batch.outcome
    if isinstance(outcome, BaseException):
        if batch.failure is not None:
            batch.failure.hear(number)
        raise outcome
    if outcome is None:
        raise InvariantViolated("a batch that is done has an outcome")
    return Delivery(*batch.partition, outcome.offset_of(number), outcome.timestamp)


async def settled(batch: ProducerBatch) -> None:
    """Returns when the batch has an outcome, or was split."""
    # One future for each waiting task: cancelling a task cancels the future that it awaits, and
    # with a shared one that would cancel the wait of all others.
    waiter = asyncio.get_running_loop().create_future()
    batch.waiters.append(waiter)
    await waiter


def tell(batch: ProducerBatch) -> None:
    """Wakes all tasks that wait for the batch."""
    waiters, batch.waiters = batch.waiters, []
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


async def all_settled(batches: Iterable[ProducerBatch]) -> None:
    """Returns when all batches, and the parts that they were split into, have an outcome."""
    left = list(batches)
    while left:
        batch = left.pop()
        if batch.parts:
            left += batch.parts
        elif not batch.is_done:
            await settled(batch)
            left.append(batch)


class TableReceipt:
    """Awaiting it gives, for each partition, the number of rows and their first and last offset; or
    raises the error of the first batch that failed.

    >>> import pyarrow as pa
    >>> from onceflow import Producer
    >>> async def main() -> None:
    ...     async with Producer(bootstrap) as producer:
    ...         receipt = await producer.send_table("orders", pa.table({"value": [b"a", b"b"]}))
    ...         print([(each.first_offset, each.last_offset) for each in await receipt])
    >>> asyncio.run(main())
    [(0, 1)]
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: list[ProducerBatch]) -> None:
        self._batches = batches

    def __repr__(self) -> str:
        rows = sum(batch.count for batch in _leaves(self._batches))
        state = "with an outcome" if self.is_done else "not acknowledged yet"
        return f"<TableReceipt of {rows} rows, {state}>"

    @property
    def is_done(self) -> bool:
        """Whether all rows have an outcome, so that awaiting the receipt returns at once."""
        return all(batch.is_done for batch in _leaves(self._batches))

    def __await__(self) -> Generator[Any, None, list[Placed]]:
        yield from all_settled(self._batches).__await__()
        for batch in _leaves(self._batches):
            if batch.failure is not None:  # one error is raised for all of them
                batch.failure.hear(*range(batch.count))
        placed: dict[tuple[str, int], Placed] = {}
        for batch in _leaves(self._batches):
            first, last = _delivery(batch, 0), _delivery(batch, batch.count - 1)
            before = placed.get(batch.partition)
            placed[batch.partition] = Placed(
                *batch.partition,
                batch.count + (before.rows if before else 0),
                before.first_offset if before else first.offset,
                last.offset,
            )
        return sorted(placed.values())


class Placed(NamedTuple):
    """The rows of a table that went to one partition."""

    topic: str
    partition: int
    rows: int
    first_offset: int
    last_offset: int


def _leaves(batches: Iterable[ProducerBatch]) -> Iterable[ProducerBatch]:
    for batch in batches:
        if batch.parts:
            yield from _leaves(batch.parts)
        else:
            yield batch


_MOST_KEPT: Final = 10_000
"""Of failures beyond that, only the number of records is kept."""
_MOST_NAMED: Final = 3


class BatchFailure:
    """The error of one batch, and the records whose receipts were awaited. Does not keep the batch
    itself, whose records may be large."""

    __slots__ = ("_all", "_heard", "error", "partition", "records")

    def __init__(
        self, batch: ProducerBatch, error: ClientError, among: OrderedDict[BatchFailure, None]
    ) -> None:
        self.partition: Final[TopicPartition] = batch.partition
        self.records: Final = batch.count
        self.error: Final = error
        self._heard: set[int] = set()
        self._all = among

    @property
    def unheard(self) -> int:
        """The number of records whose receipts were not awaited."""
        return self.records - len(self._heard)

    def hear(self, *numbers: int) -> None:
        """The application has got the error of these records. When it has got it for all, the
        failure is dropped: a raised error has a traceback, which keeps whole frames alive."""
        self._heard.update(numbers)
        if not self.unheard:
            self._all.pop(self, None)


class UnheardFailures:
    """Batches that failed, until the application has seen the error.

    A task that awaits a receipt gets the record's error. An application that never awaits its
    receipts would not: so `flush` and `close` raise once for all failed records whose receipts were
    not awaited. Used only without transactions: in a transaction the commit fails.
    """

    __slots__ = ("_failures", "_first", "_older")

    def __init__(self) -> None:
        self._failures: OrderedDict[BatchFailure, None] = OrderedDict()
        self._older = 0
        self._first: BatchFailure | None = None
        """The first of the older ones."""

    def __bool__(self) -> bool:
        return bool(self._failures) or self._older > 0

    def add(self, batch: ProducerBatch, error: ClientError) -> None:
        """Notes a batch that failed: as far as the producer knows, none of its records is in the
        log."""
        batch.failure = BatchFailure(batch, error, self._failures)
        self._failures[batch.failure] = None
        if len(self._failures) > _MOST_KEPT:
            oldest, _ = self._failures.popitem(last=False)
            self._older += oldest.unheard
            self._first = self._first or oldest

    def take(self) -> DeliveryFailed | None:
        """The error to raise, if there is one, and forgets the failures."""
        failures = list(self._failures)
        older, first = self._older, self._first
        self._failures.clear()
        self._older, self._first = 0, None
        if not failures and first is None:
            return None
        first = first or failures[0]
        return _raised(older + sum(each.unheard for each in failures), first, failures)


def _raised(records: int, first: BatchFailure, failures: list[BatchFailure]) -> DeliveryFailed:
    partitions = sorted({first.partition, *(each.partition for each in failures)})
    named = ", ".join(map(str, partitions[:_MOST_NAMED]))
    more = f" and {len(partitions) - _MOST_NAMED} more" if len(partitions) > _MOST_NAMED else ""
    who = "1 record was" if records == 1 else f"{records} records were"
    is_unknown = any(each.error.outcome == "unknown" for each in (first, *failures))
    reason = "" if all(_is_same(first, each) for each in failures) else "the first reason: "
    made = DeliveryFailed(
        f"{who} not delivered to {named}{more}, and the receipts were not awaited; "
        f"{reason}{first.error}",
        outcome="unknown" if is_unknown else "not applied",
        advice=first.error.advice,
    )
    made.__cause__ = first.error
    return made


def _is_same(one: BatchFailure, other: BatchFailure) -> bool:
    return str(one.error) == str(other.error)
