"""Books orders, exactly once: reads `orders`, writes one booking for each to `bookings`, and what
is no order to `orders.rejected`, all in the transaction that moves the group on.

    onceflow serve --data-dir data
    onceflow topics create orders --partitions 2
    onceflow topics create bookings --partitions 2
    onceflow topics create orders.rejected
    python examples/order_bookings/book.py --instance 1
    python examples/order_bookings/book.py --instance 2
    echo '{"number": 1, "cents": 1999, "country": "de"}' | onceflow produce orders

Start as many as you like, each with an instance of its own. Kill them whenever you like, and start
them again under the same name: each order is booked once. SIGTERM lets one finish its batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from typing import Any

from onceflow import Session

VAT_PERCENT = {"de": 19, "fr": 20, "it": 22}


def booking(order: dict[str, Any]) -> dict[str, Any]:
    """Raises `KeyError` for an order that lacks something, or comes from elsewhere."""
    cents, country = order["cents"], order["country"]
    tax = cents * VAT_PERCENT[country] // (100 + VAT_PERCENT[country])
    return {"number": order["number"], "net": cents - tax, "tax": tax, "country": country}


async def book(bootstrap: str, instance: str) -> None:
    """Until it is told to stop."""
    async with Session(
        bootstrap,
        group_id="booking",
        topics=["orders"],
        # Names the instance, and lets one that comes back take its partitions over at once.
        group_instance_id=instance,
        dead_letter_topic="orders.rejected",
    ) as session:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, session.stop)
        async for batch, txn in session:
            for record in batch:
                try:
                    made = booking(json.loads(record.value or b""))
                except (ValueError, KeyError, TypeError) as error:
                    await txn.dead_letter(record, error)
                else:
                    await txn.send("bookings", json.dumps(made).encode(), key=record.key)


def main() -> None:
    parser = argparse.ArgumentParser(description="Books orders, exactly once.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--instance", default="1")
    given = parser.parse_args()
    asyncio.run(book(given.bootstrap, given.instance))


if __name__ == "__main__":
    main()
