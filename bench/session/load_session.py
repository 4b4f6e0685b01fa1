"""Consume, transform, produce in transactions: Onceflow's session, or the same loop by aiokafka.

    python -m bench.session.load_session loop --client aiokafka --bootstrap HOST:PORT --topic IN ...

A process of its own, so that its cost is not the bench's; prints one line of JSON: seconds and the
CPU seconds of this process. Both read the same topic in a group of their own, at most a batch of
records at a time, send each record on, and commit them with their offsets, batch by batch; with
`--tables 1` our session, which can, sends each batch on as the Arrow table that it is. The clock
runs from a batch, after some that do not count, until the last one is committed. Ends with an error
unless all records are there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bench.client.load_client import BATCH_BYTES, CLIENTS, LINGER_MS, LoadError, Numbers, Stopwatch

GIVE_UP_SECONDS: Final = 60.0


class Progress:
    """When the clock starts, and when it is over."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._warm_up: int = arguments.warm_up
        self._left: int = arguments.records
        self.watch: Stopwatch | None = None

    def before(self) -> None:
        """A batch was handed out."""
        if self._warm_up == 0:
            self.watch = Stopwatch()
        self._warm_up -= 1

    def after(self, records: int) -> bool:
        """Whether these were the last."""
        if self.watch is not None:
            self._left -= records
        return self._left <= 0

    def numbers(self) -> Numbers:
        if self.watch is None:
            raise LoadError("there were fewer records than the warm-up takes")
        return self.watch.numbers()


async def session(arguments: argparse.Namespace, group_id: str) -> Numbers:
    """Ours."""
    from onceflow.client.session.session import Session

    progress = Progress(arguments)
    out = arguments.out
    async with Session(
        arguments.bootstrap,
        group_id=group_id,
        topics=[arguments.topic],
        max_poll_records=arguments.batch,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
    ) as ours:
        async for batch, txn in ours:
            progress.before()
            if arguments.tables:
                await txn.send_table(out, batch.table().select(["value", "partition"]))
            else:
                for record in batch:
                    await txn.send(out, record.value, partition=record.partition)
            if progress.after(len(batch)):
                break
        await ours.close()
        return progress.numbers()


async def loop(arguments: argparse.Namespace, group_id: str) -> Numbers:
    """The same, as aiokafka's documentation has it."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    progress = Progress(arguments)
    out = arguments.out
    consumer = AIOKafkaConsumer(
        arguments.topic,
        bootstrap_servers=arguments.bootstrap,
        group_id=group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=arguments.bootstrap,
        transactional_id=f"{group_id}-0",
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )
    async with consumer, producer:
        while True:
            found = await consumer.getmany(timeout_ms=60_000, max_records=arguments.batch)
            if not found:
                raise LoadError(f"nothing to read for {GIVE_UP_SECONDS:.0f} s")
            progress.before()
            async with producer.transaction():
                offsets = {}
                for place, records in found.items():
                    for record in records:
                        await producer.send(out, record.value, partition=record.partition)
                    offsets[place] = records[-1].offset + 1
                await producer.send_offsets_to_transaction(offsets, group_id)
            if progress.after(sum(map(len, found.values()))):
                return progress.numbers()


CLIENTS_LOADS: Final[dict[str, Callable[[argparse.Namespace, str], Awaitable[Any]]]] = {
    "onceflow": session,
    "aiokafka": loop,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Consume, transform, produce in transactions.")
    parser.add_argument("load", choices=["loop"])
    parser.add_argument("--client", choices=CLIENTS, default="onceflow")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="records of a transaction at most")
    parser.add_argument("--tables", type=int, default=0, help="1: ours sends tables on")
    parser.add_argument("--warm-up", type=int, default=3, help="batches before the clock runs")
    arguments = parser.parse_args()
    group_id = f"bench-{arguments.client}-{time.monotonic_ns()}"
    try:
        print(json.dumps(asyncio.run(run(arguments, group_id))))
    except LoadError as error:
        sys.exit(str(error))


async def run(arguments: argparse.Namespace, group_id: str) -> Any:
    async with asyncio.timeout(2 * GIVE_UP_SECONDS):
        return await CLIENTS_LOADS[arguments.client](arguments, group_id)


if __name__ == "__main__":
    main()
