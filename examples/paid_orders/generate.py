"""Sends orders and payments to two topics. One order in ten is never paid, one payment in fifty is
of nothing.

    python generate.py [--count 5000] [--bootstrap 127.0.0.1:9092]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from onceflow import Producer

ORDERS = "paid-orders-orders"
PAYMENTS = "paid-orders-payments"
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def events(count: int, seed: int = 13) -> Iterator[tuple[str, bytes, bytes]]:
    """Topics, keys and values; the same ones every time."""
    rand = random.Random(seed)
    for number in range(count):
        key = str(number).encode()
        at = FIRST + timedelta(seconds=number)
        cents = rand.randrange(100, 50_000)
        order = {"order_id": number, "cents": cents, "ordered_at": at.isoformat()}
        yield ORDERS, key, json.dumps(order).encode()
        if number % 10 == 7:
            continue
        payment = {
            "order_id": number,
            "cents": 0 if number % 50 == 3 else cents - rand.choice((0, 0, 100)),
            "method": rand.choice(("card", "invoice", "cash")),
            "paid_at": (at + timedelta(seconds=rand.randrange(1, 600))).isoformat(),
        }
        yield PAYMENTS, key, json.dumps(payment).encode()


async def send(bootstrap: str, count: int) -> None:
    """Returns when all are acknowledged."""
    async with Producer(bootstrap) as producer:
        for topic, key, value in events(count):
            await producer.send(topic, value, key=key)
    print(f"sent {count} orders to {ORDERS}, and their payments to {PAYMENTS}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    arguments = parser.parse_args()
    asyncio.run(send(arguments.bootstrap, arguments.count))
