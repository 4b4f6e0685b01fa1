"""Sends orders to the topic `orders`: most of them good, some of them not.

python generate.py [--count 10000] [--bootstrap 127.0.0.1:9092]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator

from onceflow import Producer

TOPIC = "orders"
CUSTOMERS = [f"customer-{number}" for number in range(50)]


def orders(count: int, seed: int = 7) -> Iterator[tuple[str, bytes]]:
    """Keys and values; the same ones every time."""
    rand = random.Random(seed)
    for number in range(count):
        customer = rand.choice(CUSTOMERS)
        lines = [
            {
                "sku": f"sku-{rand.randrange(100)}",
                "quantity": rand.randrange(1, 5),
                "cents": rand.randrange(50, 20_000),
            }
            for _ in range(rand.randrange(1, 4))
        ]
        order = {"order_id": number, "customer": customer, "lines": lines}
        match number % 100:
            case 13:
                order["lines"] = []
            case 37:
                lines[0]["quantity"] = 0
            case 61:
                order["order_id"] = f"number {number}"
            case 89:
                yield customer, b'{"order_id": 12, "cust'
                continue
        yield customer, json.dumps(order).encode()


async def send(bootstrap: str, count: int) -> None:
    """Returns when all are acknowledged."""
    async with Producer(bootstrap) as producer:
        for key, value in orders(count):
            await producer.send(TOPIC, value, key=key.encode())
    print(f"sent {count} orders to {TOPIC}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    arguments = parser.parse_args()
    asyncio.run(send(arguments.bootstrap, arguments.count))
