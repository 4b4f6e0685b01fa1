"""Exactly the records of a partition from one offset up to, not including, another; then an end.

What comes next is fetched while the last is worked on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING

from onceflow.client.codec import FetchAnswer, nothing_of
from onceflow.client.consumer.fetch_request import fetch, is_out_of_range, out_of_range, refusal
from onceflow.client.consumer.range_reading import RangeReading
from onceflow.client.errors import RangeUnavailable
from onceflow.client.net import Cluster
from onceflow.client.settings import ReaderSettings
from onceflow.records import StoredBatch
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


async def read_range(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    settings: ReaderSettings | None = None,
    timeout_s: float = 60.0,
) -> AsyncGenerator[pa.Table, None]:
    """Tables, in order, of the columns of `fetched.FETCHED_SCHEMA`; together exactly the range.

    Raises `OffsetOutOfRange` when the log does not hold it, and `RangeUnavailable` when nothing
    more of it came within `timeout_s`.
    """
    settings = settings or ReaderSettings()
    reading = RangeReading(partition, start, end, read_committed=settings.read_committed)
    ahead = _start(cluster, reading, settings, timeout_s)
    try:
        while not reading.is_done:
            first = reading.position
            batches = reading.take(await ahead)
            ahead = _start(cluster, reading, settings, timeout_s)  # comes while this is decoded
            for table in _tables(partition, batches, first, end, settings):
                yield table
    finally:
        ahead.cancel()


def _start(
    cluster: Cluster, reading: RangeReading, settings: ReaderSettings, timeout_s: float
) -> asyncio.Future[FetchAnswer]:
    """The next answer; one that never comes when the range is at its end."""
    loop = asyncio.get_running_loop()
    if reading.is_done:
        return loop.create_future()
    task = loop.create_task(_progress(cluster, reading, settings, timeout_s))
    task.add_done_callback(_look_at)
    return task


def _look_at(task: asyncio.Task[FetchAnswer]) -> None:
    """Takes an error that no caller waits for any more, or asyncio would log it."""
    if not task.cancelled():
        task.exception()


def _tables(
    partition: TopicPartition,
    batches: list[StoredBatch],
    first: int,
    end: int,
    settings: ReaderSettings,
) -> Iterator[pa.Table]:
    import pyarrow as pa

    from onceflow.client.consumer.fetched import portions_of

    limit = settings.max_decompressed_batch_bytes
    for rows in portions_of(partition, batches, first, end, limit=limit):
        yield pa.Table.from_batches([rows])


async def _progress(
    cluster: Cluster, reading: RangeReading, settings: ReaderSettings, timeout_s: float
) -> FetchAnswer:
    """The first answer that brings the range forward."""
    last: FetchAnswer | None = None

    async def attempt() -> FetchAnswer:
        return await _ask(cluster, reading, settings)

    try:
        async with asyncio.timeout(timeout_s):
            while True:
                last = await cluster.retrying(attempt)
                if last.records or reading.is_readable_to_the_end(last):
                    return last
    except TimeoutError:
        raise _unavailable(reading, last, timeout_s) from None


def _unavailable(
    reading: RangeReading, last: FetchAnswer | None, timeout_s: float
) -> RangeUnavailable:
    known = "no broker answered"
    if last is not None:
        known = (
            f"its last stable offset is {last.last_stable_offset}, its end {last.high_watermark}"
        )
    return RangeUnavailable(
        f"partition {reading.partition} could not be read from offset {reading.position} up to "
        f"{reading.end} within {timeout_s:g} s: {known}"
    )


async def _ask(cluster: Cluster, reading: RangeReading, settings: ReaderSettings) -> FetchAnswer:
    partition = reading.partition
    leader = await cluster.leader(partition)
    for answer in await fetch(cluster, leader, [(partition, reading.position)], settings):
        if is_out_of_range(answer):
            raise await out_of_range(cluster, partition, reading.position)
        if answer.error:
            raise refusal(answer)
        return answer
    return nothing_of(partition)
