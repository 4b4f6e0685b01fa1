"""Turns payments into bookings: each payment must be booked once, whatever happens.

It has a bug. In a test on a machine that is well it shows nothing.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from onceflow import Consumer, Producer


async def book(bootstrap: str, **world: Any) -> None:
    """Until it is killed. `world` is the simulated network and clock of a test, or empty."""
    async with (
        Producer(bootstrap, transactional_id="booking", **world) as bookings,
        Consumer(
            bootstrap,
            group_id="booking",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **world,
        ) as payments,
    ):
        payments.subscribe(["payments"])
        while True:
            records = await payments.poll(1.0)
            if not records:
                continue
            async with bookings.transaction() as transaction:
                for record in records:
                    await transaction.send("bookings", record.value)
            await payments.commit()


if __name__ == "__main__":
    asyncio.run(book(os.environ.get("BOOTSTRAP", "127.0.0.1:9092")))
