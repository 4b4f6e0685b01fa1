"""Load by an asyncio client, Onceflow's or aiokafka: records one by one, tables, transactions.

    python -m bench.client.load_client send --client aiokafka --bootstrap HOST:PORT --topic NAME ...

A process of its own, so that its cost is not the bench's; prints one line of JSON: seconds and the
CPU seconds of this process. Both clients get the same settings and, where both can do it, run the
very same lines. Connections are open, metadata is known and code is loaded before the clock starts.
Ends with an error unless every record was acknowledged, or read.
- `send`: records to all partitions in turn, every receipt awaited, one window of them behind.
- `table`: the same records as Arrow tables, with a column that says the partition.
- `read`, `records`: all of a topic, as tables and by record.
- `one`: transactions of one record, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from onceflow.client.consumer.consumer import Consumer

CLIENTS: Final = ("onceflow", "aiokafka")
BATCH_BYTES: Final = 64 << 10
LINGER_MS: Final = 5
WINDOW: Final = 10_000
TABLE_ROWS: Final = 10_000
MOST_RECORDS: Final = 10_000
GIVE_UP_SECONDS: Final = 60.0

Numbers = dict[str, float]


class LoadError(RuntimeError):
    """The broker did not take or give what was asked of it."""


class Stopwatch:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def numbers(self) -> Numbers:
        return {
            "seconds": time.perf_counter() - self._wall,
            "cpu_seconds": time.process_time() - self._cpu,
        }


# --- producing ----------------------------------------------------------------------------------


@asynccontextmanager
async def producing(arguments: argparse.Namespace, **settings: Any) -> AsyncIterator[Any]:
    """A producer of either client; what differs is only how each calls the size of a batch."""
    if arguments.client == "onceflow":
        from onceflow.client.producer.producer import Producer

        async with Producer(
            arguments.bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES, **settings
        ) as ours:
            yield ours
    else:
        from aiokafka import AIOKafkaProducer

        async with AIOKafkaProducer(
            bootstrap_servers=arguments.bootstrap,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
            enable_idempotence=True,
            **settings,
        ) as theirs:
            yield theirs


async def send(arguments: argparse.Namespace) -> Numbers:
    """Seconds from the first record to the last receipt."""
    values = [os.urandom(arguments.record_bytes) for _ in range(100)]
    keys = [b"customer-%d" % number for number in range(1000)] if arguments.keyed else None
    async with producing(arguments) as producer:
        await send_all(producer, arguments, values, keys, WINDOW)
        watch = Stopwatch()
        await send_all(producer, arguments, values, keys, arguments.records)
        return watch.numbers()


async def send_all(
    producer: Any,
    arguments: argparse.Namespace,
    values: list[bytes],
    keys: list[bytes] | None,
    records: int,
) -> None:
    """A window of records is sent while the one before is on its way."""
    topic = arguments.topic
    next_value = cycle(values)
    behind: list[Awaitable[Any]] = []
    for first in range(0, records, WINDOW):
        count = min(WINDOW, records - first)
        if keys is None:
            places = cycle(range(arguments.partitions))
            sent = [
                await producer.send(topic, value, partition=place)
                for value, place in islice(zip(next_value, places, strict=False), count)
            ]
        else:
            sent = [
                await producer.send(topic, value, key=key)
                for value, key in islice(zip(next_value, cycle(keys), strict=False), count)
            ]
        for receipt in behind:
            await receipt
        behind = sent
    for receipt in behind:
        await receipt


async def table(arguments: argparse.Namespace) -> Numbers:
    """Seconds from the first table to the last receipt."""
    import pyarrow as pa

    value = [os.urandom(arguments.record_bytes) for _ in range(TABLE_ROWS)]
    place = list(islice(cycle(range(arguments.partitions)), TABLE_ROWS))
    rows = pa.table({"value": pa.array(value, pa.binary()), "partition": pa.array(place)})
    async with producing(arguments) as producer:
        await (await producer.send_table(arguments.topic, rows))
        watch = Stopwatch()
        behind: Awaitable[Any] | None = None
        for first in range(0, arguments.records, TABLE_ROWS):
            part = rows.slice(0, min(TABLE_ROWS, arguments.records - first))
            sent = await producer.send_table(arguments.topic, part)
            if behind is not None:
                await behind
            behind = sent
        if behind is not None:
            await behind
        return watch.numbers()


async def one(arguments: argparse.Namespace) -> Numbers:
    """Seconds that transactions of one record took, after some that do not count."""
    value = os.urandom(arguments.record_bytes)
    name = f"bench-{os.getpid()}-{time.monotonic_ns()}"
    places = cycle(range(arguments.partitions))
    async with producing(arguments, transactional_id=name) as producer:
        watch = Stopwatch()
        for number in range(arguments.warm_up + arguments.records):
            if number == arguments.warm_up:
                watch = Stopwatch()
            async with producer.transaction():
                await producer.send(arguments.topic, value, partition=next(places))
        return watch.numbers()


# --- reading ------------------------------------------------------------------------------------


async def read(arguments: argparse.Namespace) -> Numbers:
    """Seconds from the first table that was read to the last, over all passes."""

    async def next_rows(consumer: Consumer) -> int:
        found = await consumer.poll_table(GIVE_UP_SECONDS)
        return 0 if found is None else int(found.num_rows)

    return await passes(arguments, lambda: read_ours(arguments, next_rows))


async def records(arguments: argparse.Namespace) -> Numbers:
    """The same, by record."""

    async def next_rows(consumer: Consumer) -> int:
        return len(await consumer.poll(GIVE_UP_SECONDS, max_records=MOST_RECORDS))

    if arguments.client == "aiokafka":
        return await passes(arguments, lambda: read_aiokafka(arguments))
    return await passes(arguments, lambda: read_ours(arguments, next_rows))


async def passes(
    arguments: argparse.Namespace, read_once: Callable[[], Awaitable[Numbers]]
) -> Numbers:
    total = {"seconds": 0.0, "cpu_seconds": 0.0}
    for _ in range(arguments.passes):
        for name, number in (await read_once()).items():
            total[name] += number
    return total


async def read_ours(
    arguments: argparse.Namespace, next_rows: Callable[[Consumer], Awaitable[int]]
) -> Numbers:
    from onceflow.client.consumer.consumer import Consumer
    from onceflow.types import TopicPartition

    places = [TopicPartition(arguments.topic, each) for each in range(arguments.partitions)]
    async with Consumer(
        arguments.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        # Code is loaded with the first row, which is then read again.
        await consumer.assign(places[:1])
        await consumer.poll(GIVE_UP_SECONDS, max_records=1)
        await consumer.assign(places)
        await consumer.seek_to_beginning()
        watch = Stopwatch()
        left = arguments.records
        while left > 0:
            if not (found := await next_rows(consumer)):
                raise LoadError(f"nothing to read for {GIVE_UP_SECONDS:.0f} s, {left} are missing")
            left -= found
        return watch.numbers()


async def read_aiokafka(arguments: argparse.Namespace) -> Numbers:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    places = [TopicPartition(arguments.topic, each) for each in range(arguments.partitions)]
    async with AIOKafkaConsumer(
        bootstrap_servers=arguments.bootstrap, isolation_level="read_committed"
    ) as consumer:
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        left = arguments.records - len(await consumer.getmany(timeout_ms=60_000, max_records=1))
        watch = Stopwatch()
        while left > 0:
            found = await consumer.getmany(timeout_ms=60_000, max_records=MOST_RECORDS)
            if not found:
                raise LoadError(f"nothing to read for {GIVE_UP_SECONDS:.0f} s, {left} are missing")
            left -= sum(map(len, found.values()))
        return watch.numbers()


LOADS: Final[dict[str, Callable[[argparse.Namespace], Awaitable[Numbers]]]] = {
    "send": send,
    "table": table,
    "one": one,
    "read": read,
    "records": records,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Load by an asyncio client.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--client", choices=CLIENTS, default="onceflow")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True, help="or transactions, of `one`")
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--keyed", type=int, default=0, help="1: a key decides the partition")
    parser.add_argument("--warm-up", type=int, default=0, help="transactions before the clock runs")
    parser.add_argument("--passes", type=int, default=1, help="how often all is read")
    arguments = parser.parse_args()

    async def run() -> Numbers:
        return await LOADS[arguments.load](arguments)

    try:
        print(json.dumps(asyncio.run(run())))
    except LoadError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
