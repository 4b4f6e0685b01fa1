"""What all who put load on the broker share: where it is, seeds, when to stop, the ledger."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

from onceflow.client.admin.admin import Admin
from tests.soak.ledger import Ledger
from tests.soak.scale import Scale

PAYMENTS = "payments"
COPIES = "copies"
UNREAD = "unread"
VISITS = "visits"
STATE = "state"
ABANDONED = "abandoned"
PARTITIONS = 3
COPIER = "copier"
"""The group of those who copy payments."""


class World:
    """Belongs to one loop. `counts` is what has been done, for the report."""

    def __init__(self, bootstrap: str, admin: Admin, scale: Scale, seed: int) -> None:
        self.bootstrap = bootstrap
        self.admin = admin
        self.scale = scale
        self._seed = seed
        self.ledger = Ledger(PAYMENTS, COPIES)
        self.state: dict[bytes, bytes | None] = {}
        """What was last written for each key of the compacted topic."""
        self.counts: Counter[str] = Counter()
        self.writers_stop = asyncio.Event()
        self.readers_stop = asyncio.Event()

    def rand(self, name: str) -> random.Random:
        """One of its own for everybody: what one does changes nothing for others."""
        return random.Random(f"{self._seed} {name}")

    async def turns(
        self, name: str, seconds: float, *, until: asyncio.Event | None = None
    ) -> AsyncIterator[random.Random]:
        """One turn every so many seconds, more or less, until it is time to stop."""
        stop = until or self.writers_stop
        rand = self.rand(name)
        clock = asyncio.get_running_loop().time
        while not stop.is_set():
            began = clock()
            yield rand
            self.counts[name] += 1
            pause = seconds * rand.uniform(0.5, 1.5) - (clock() - began)
            try:
                await asyncio.wait_for(stop.wait(), max(pause, 0.001))
            except TimeoutError:
                continue
