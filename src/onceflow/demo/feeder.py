"""The orders of the demo, sent at a steady rate by an idempotent producer that outlives its broker.

Those that count are the acknowledged ones; `stop` returns when all are.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Final

from onceflow.client import Producer, Receipt
from onceflow.demo.driver import DemoStuck
from onceflow.demo.orders import ORDERS, PATIENT, order

PER_SECOND: Final = 1_000
_PULSES_PER_SECOND: Final = 10
_CHUNK: Final = PER_SECOND // _PULSES_PER_SECOND
_PATIENCE_S: Final = 60.0


class Feeder:
    """A thread that sends orders from `start` to `stop`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onceflow-demo-feeder", daemon=True)
        self._waiting: deque[Receipt] = deque()
        self.failure: Exception | None = None
        """What has ended it too early."""
        self.sent = 0
        self.acknowledged = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when every order that was sent is acknowledged."""
        self._is_over.set()
        self._thread.join(_PATIENCE_S)
        if self.failure is not None:
            raise DemoStuck(f"orders could not be sent: {self.failure}") from self.failure
        if self._thread.is_alive() or self.acknowledged != self.sent:
            left = self.sent - self.acknowledged
            raise DemoStuck(f"{left:,} orders were not acknowledged within {_PATIENCE_S:.0f} s")

    def _run(self) -> None:
        try:
            asyncio.run(self._send())
        except Exception as error:
            self.failure = error

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        async with Producer(self._bootstrap, PATIENT) as producer:
            due = loop.time()
            while not self._is_over.is_set():
                for _ in range(_CHUNK):
                    _, key, value, *_ = order(self.sent)
                    self._waiting.append(await producer.send(ORDERS, value, key=key))
                    self.sent += 1
                await self._take_receipts()
                due += 1 / _PULSES_PER_SECOND
                await asyncio.sleep(max(0.0, due - loop.time()))
            await producer.flush()
            await self._take_receipts()

    async def _take_receipts(self) -> None:
        """Of those that are there; raises when an order was refused."""
        while self._waiting and self._waiting[0].is_done:
            await self._waiting.popleft()
            self.acknowledged += 1
