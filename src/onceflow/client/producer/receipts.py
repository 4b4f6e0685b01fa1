"""What `send` gives back: a promise of where a record is, shared by all records of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

from onceflow.client.producer.batch import Batch, Delivered
from onceflow.errors import InvariantViolated

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

    >>> from onceflow.client.producer.producer import Producer
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

    batch: Batch
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


def _delivery(batch: Batch, number: int) -> Delivery:
    outcome = batch.outcome
    if isinstance(outcome, BaseException):
        if batch.failure is not None:
            batch.failure.hear(number)
        raise outcome
    if outcome is None:
        raise InvariantViolated("a batch that is done has an outcome")
    return Delivery(*batch.partition, outcome.offset_of(number), outcome.timestamp)


async def settled(batch: Batch) -> None:
    """Returns when the batch has an outcome, or was split."""
    # One for each who waits: who stops waiting must not take the promise away from the others.
    told = asyncio.get_running_loop().create_future()
    batch.waiters.append(told)
    await told


def tell(batch: Batch) -> None:
    """Wakes all who wait for the batch."""
    waiters, batch.waiters = batch.waiters, []
    for told in waiters:
        if not told.done():
            told.set_result(None)


async def all_settled(batches: Iterable[Batch]) -> None:
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
    >>> from onceflow.client.producer.producer import Producer
    >>> async def main() -> None:
    ...     async with Producer(bootstrap) as producer:
    ...         receipt = await producer.send_table("orders", pa.table({"value": [b"a", b"b"]}))
    ...         print([(each.first_offset, each.last_offset) for each in await receipt])
    >>> asyncio.run(main())
    [(0, 1)]
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: list[Batch]) -> None:
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


def _leaves(batches: Iterable[Batch]) -> Iterable[Batch]:
    for batch in batches:
        if batch.parts:
            yield from _leaves(batch.parts)
        else:
            yield batch
