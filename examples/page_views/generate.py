"""Sends views of pages to the topic `views`, as CSV, each some seconds after the one before.

python generate.py [--count 10000] [--bootstrap 127.0.0.1:9092]
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from onceflow import Producer

TOPIC = "views"
PAGES = ("start", "search", "basket", "about")
FIRST = datetime(2026, 1, 1, 12, tzinfo=UTC)


def views(count: int, seed: int = 11) -> Iterator[tuple[str, bytes]]:
    """Keys and values; the same ones every time. Some come late, one in 200 is no view."""
    rand = random.Random(seed)
    at = FIRST
    for number in range(count):
        at += timedelta(milliseconds=rand.randrange(400))
        seen = at - timedelta(seconds=rand.choice((0, 0, 0, 5, 90)))
        page = rand.choice(PAGES)
        line = f"{seen:%Y-%m-%dT%H:%M:%S}Z,{page},{rand.randrange(1000)}"
        yield page, b"yesterday,start,1" if number % 200 == 123 else line.encode()


async def send(bootstrap: str, count: int) -> None:
    """Returns when all are acknowledged."""
    async with Producer(bootstrap) as producer:
        for key, value in views(count):
            await producer.send(TOPIC, value, key=key.encode())
    print(f"sent {count} views to {TOPIC}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    arguments = parser.parse_args()
    asyncio.run(send(arguments.bootstrap, arguments.count))
