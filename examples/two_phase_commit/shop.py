"""Orders in SQLite and on a topic, committed together: both have an order, or neither.

    onceflow serve --data-dir data --set transaction.two.phase.commit.enable=true
    onceflow topics create orders
    python examples/two_phase_commit/shop.py --orders 1000

Kill it whenever you like, and start it again: it goes on where it was. SQLite decides. The name of
the prepared transaction is stored in the same commit as the order, so that after a crash the one
tells how the other has to end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
from contextlib import closing

from onceflow import Producer

TOPIC = "orders"
TABLES = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS decision (prepared TEXT NOT NULL);
INSERT INTO decision SELECT '' WHERE NOT EXISTS (SELECT * FROM decision);
"""


def opened(path: str) -> sqlite3.Connection:
    shop = sqlite3.connect(path)
    shop.execute("PRAGMA synchronous = FULL")
    shop.executescript(TABLES)
    return shop


async def sell(bootstrap: str, shop: sqlite3.Connection, orders: int) -> None:
    """Goes on until there are so many orders."""
    async with Producer(
        bootstrap, transactional_id="shop", transaction_two_phase_commit_enable=True
    ) as producer:
        # What a crash has left open ends as SQLite has decided.
        await producer.init_transactions(keep_prepared=True)
        (decided,) = shop.execute("SELECT prepared FROM decision").fetchone()
        await producer.complete_transaction(decided)

        (sold,) = shop.execute("SELECT count(*) FROM orders").fetchone()
        for number in range(sold, orders):
            order = {"number": number, "cents": 100 * number + 99}
            await producer.begin_transaction()
            await producer.send(TOPIC, json.dumps(order).encode())
            prepared = await producer.prepare_transaction()
            with shop:  # its commit is the decision
                shop.execute("INSERT INTO orders VALUES (:number, :cents)", order)
                shop.execute("UPDATE decision SET prepared = ?", (str(prepared),))
            await producer.complete_transaction(prepared)


def main() -> None:
    parser = argparse.ArgumentParser(description="SQLite and a topic, committed together.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--database", default="shop.db")
    parser.add_argument("--orders", type=int, default=1000)
    given = parser.parse_args()
    with closing(opened(given.database)) as shop:
        asyncio.run(sell(given.bootstrap, shop, given.orders))


if __name__ == "__main__":
    main()
