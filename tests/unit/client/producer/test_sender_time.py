"""A producer and the passing of time: a batch that becomes due while the sender looks is sent."""

from __future__ import annotations

import asyncio

import onceflow
from onceflow.blocking import Admin
from onceflow.client.producer.producer import Producer
from onceflow.runtime.clock import RealClock

LINGER_MS = 5
SENDS = 40


class Hurried(RealClock):
    """Time passes whenever somebody looks: between any two looks a batch may become due."""

    __slots__ = ("_ahead_s",)

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        self._ahead_s += LINGER_MS / 1000 / 3
        return super().monotonic() + self._ahead_s


def test_what_becomes_due_between_two_looks_at_the_clock_is_not_forgotten() -> None:
    async def main(bootstrap: str) -> None:
        clock = Hurried()
        async with Producer(bootstrap, clock=clock, linger_ms=LINGER_MS) as producer:
            for _ in range(SENDS):
                async with asyncio.timeout(30):
                    await (await producer.send("orders", b"x"))

    with onceflow.Broker() as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
        asyncio.run(main(broker.bootstrap))
