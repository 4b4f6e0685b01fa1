"""What `send` gives back: a promise of where a record is, shared by all records of a batch."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator, Iterable
from typing import Any, Final, NamedTuple

from onceflow.client.errors import ClientError, DeliveryFailed
from onceflow.client.producer.batch import Delivered, ProducerBatch
from onceflow.errors import InvariantViolated
from onceflow.types import TopicPartition

_made = tuple.__new__  # a named tuple without its own constructor, which is Python and slow


class Delivery(NamedTuple):
    """Where a record is in the log."""

    topic: str
    partition: int
    offset: int
    """-1 where the broker says that it is there, and not where."""
    timestamp: int
    """The broker's, where the topic wants that; else -1."""


class Receipt(NamedTuple):
    """Awaiting it gives the `Delivery`, or raises why there is none. It may be awaited by nobody or
    by many; the record counts either way. That of a record which failed is raised by `flush` and at
    the end of the producer if nobody awaits it.

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
    """Of the record in the batch."""

    def __repr__(self) -> str:
        batch, number = self.batch.locate(self.number)
        if isinstance(batch.outcome, Delivered):
            return f"<Receipt of {batch.partition}, offset {batch.outcome.offset_of(number)}>"
        state = "not acknowledged yet" if batch.outcome is None else f"failed: {batch.outcome}"
        return f"<Receipt of {batch.partition}, {state}>"

    @property
    def is_done(self) -> bool:
        """Whether awaiting it would not wait."""
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
        # The same without a call: this is done for every record.
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
    # One for each who waits: who stops waiting must not take the promise away from the others.
    told = asyncio.get_running_loop().create_future()
    batch.waiters.append(told)
    await told


def tell(batch: ProducerBatch) -> None:
    """Wakes all who wait for the batch."""
    waiters, batch.waiters = batch.waiters, []
    for told in waiters:
        if not told.done():
            told.set_result(None)


async def all_settled(batches: Iterable[ProducerBatch]) -> None:
    """Returns when all of them, and the parts that they were split into, have an outcome."""
    left = list(batches)
    while left:
        batch = left.pop()
        if batch.parts:
            left += batch.parts
        elif not batch.is_done:
            await settled(batch)
            left.append(batch)


class TableReceipt:
    """Awaiting it gives, for each partition that rows went to, their number and first and last
    offset; or raises the first reason why some are not there.

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
        """Whether awaiting it would not wait."""
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
    """Rows of a table in one partition."""

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
"""Of older ones only the number of records is kept."""
_MOST_NAMED: Final = 3


class BatchFailure:
    """Of one batch, which itself is let go. The receipts say which records were heard of."""

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
        """How many records."""
        return self.records - len(self._heard)

    def hear(self, *numbers: int) -> None:
        """Whoever awaited the receipts of these was told. When all are heard of nothing is kept:
        the error, once raised, holds on to whatever was at hand where it was."""
        self._heard.update(numbers)
        if not self.unheard:
            self._all.pop(self, None)


class UnheardFailures:
    """Batches that were not delivered, until the application has seen the error.

    A task that awaits a receipt gets the error of that record. One that never awaits it would not:
    so `flush` and the end of a producer raise, once, for all failed records whose receipts nobody
    has awaited. Only of a producer without transactions: in a transaction the commit fails.
    """

    __slots__ = ("_failures", "_first", "_older")

    def __init__(self) -> None:
        self._failures: OrderedDict[BatchFailure, None] = OrderedDict()
        self._older = 0
        self._first: BatchFailure | None = None
        """Of the older ones."""

    def __bool__(self) -> bool:
        return bool(self._failures) or self._older > 0

    def add(self, batch: ProducerBatch, error: ClientError) -> None:
        """None of its records was delivered, as far as is known."""
        batch.failure = BatchFailure(batch, error, self._failures)
        self._failures[batch.failure] = None
        if len(self._failures) > _MOST_KEPT:
            oldest, _ = self._failures.popitem(last=False)
            self._older += oldest.unheard
            self._first = self._first or oldest

    def take(self) -> DeliveryFailed | None:
        """What is to be raised, if anything; the next time it is not there any more."""
        failures = list(self._failures)
        older, first = self._older, self._first
        self._failures.clear()
        self._older, self._first = 0, None
        if not failures and first is None:
            return None
        first = first or failures[0]
        return _raised(older + sum(each.unheard for each in failures), first, failures)


def _raised(records: int, first: BatchFailure, failures: list[BatchFailure]) -> DeliveryFailed:
    places = sorted({first.partition, *(each.partition for each in failures)})
    named = ", ".join(map(str, places[:_MOST_NAMED]))
    more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
    who = "1 record was" if records == 1 else f"{records} records were"
    is_unknown = any(each.error.outcome == "unknown" for each in (first, *failures))
    reason = "" if all(_is_same(first, each) for each in failures) else "the first reason: "
    made = DeliveryFailed(
        f"{who} not delivered to {named}{more}, and nobody has awaited the receipts; "
        f"{reason}{first.error}",
        outcome="unknown" if is_unknown else "not applied",
        advice=first.error.advice,
    )
    made.__cause__ = first.error
    return made


def _is_same(one: BatchFailure, other: BatchFailure) -> bool:
    return str(one.error) == str(other.error)
