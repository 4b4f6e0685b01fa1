"""Sends readings of sensors to the topic `readings`: most of them good, some of them not.

python generate.py [--count 10000] [--bootstrap 127.0.0.1:9092]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator

from onceflow import Producer

TOPIC = "readings"
SENSORS = [f"sensor-{number}" for number in range(20)]


def readings(count: int, seed: int = 17) -> Iterator[tuple[str, bytes]]:
    """Keys and values; the same ones every time."""
    rand = random.Random(seed)
    for number in range(count):
        sensor = rand.choice(SENSORS)
        reading = {"sensor": sensor, "number": number, "fahrenheit": rand.randrange(-20, 110)}
        match number % 100:
            case 17:
                reading["fahrenheit"] = 9999
            case 43:
                del reading["fahrenheit"]
            case 71:
                yield sensor, b'{"sensor": "sen'
                continue
        yield sensor, json.dumps(reading).encode()


async def send(bootstrap: str, count: int) -> None:
    """Returns when all are acknowledged."""
    async with Producer(bootstrap) as producer:
        for key, value in readings(count):
            await producer.send(TOPIC, value, key=key.encode())
    print(f"sent {count} readings to {TOPIC}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    arguments = parser.parse_args()
    asyncio.run(send(arguments.bootstrap, arguments.count))
