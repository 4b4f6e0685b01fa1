"""A member of a group as a process of its own, to be killed and stopped: says what happens to it, a
line of JSON each, and ends when its input does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection
from typing import Any

from onceflow.client.consumer.consumer import Consumer, RebalanceListener
from onceflow.client.errors.consumer import CommitFailed
from onceflow.types import TopicPartition


def say(word: str, **facts: Any) -> None:
    print(json.dumps({"word": word, **facts}), flush=True)


class Teller(RebalanceListener):
    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        say("assigned", partitions=[each.partition for each in partitions])

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        say("revoked", partitions=[each.partition for each in partitions])

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        say("lost", partitions=[each.partition for each in partitions])


async def ended() -> None:
    """When whoever started this closes its input."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def main(settings: dict[str, Any]) -> None:
    topic, order = settings.pop("topic"), settings.pop("order")
    over = asyncio.create_task(ended())
    async with Consumer(None, settings) as consumer:
        consumer.subscribe([topic], Teller())
        while not over.done():
            records = await consumer.poll(0.1)
            try:
                if order == "before":
                    await commit(consumer, records)
                for record in records:
                    # The work, whose effect outlives the process.
                    say("did", value=(record.value or b"").decode(), partition=record.partition)
                if order == "after":
                    await commit(consumer, records)
            except CommitFailed as error:
                say("refused", error=type(error).__name__)
    say("closed")


async def commit(consumer: Consumer, records: Collection[Any]) -> None:
    if records:
        await consumer.commit()
        say("committed", count=len(records))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
