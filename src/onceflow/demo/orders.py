"""What goes through the demo: orders, of which a few are broken, and the pipeline that they take.

An order follows from its number alone, so the count of orders sent says what all of them are.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

ORDERS: Final = "orders"
TOTALS: Final = "order-totals"
DEAD_LETTERS: Final = "dead-letters"
PARTITIONS: Final = {ORDERS: 4, TOTALS: 4, DEAD_LETTERS: 1}
PIPELINE: Final = "order-totals"
"""Its name, and so that of its group."""
PATIENT: Final = {"socket.connection.setup.timeout.ms": 60_000}
"""The broker is there, however long a busy disk takes to load what its first answer needs."""
_CUSTOMERS: Final = 500
_EACH_IS_BROKEN: Final = 50

_FILE: Final = """\
[pipeline]
name = "{name}"
checkpoint = "checkpoint"

[source]
bootstrap = "{bootstrap}"
topics = ["{orders}"]
format = "json"
schema = "order_id BIGINT NOT NULL, customer STRING, quantity INT, cents BIGINT"

[rules]
"has a customer" = "customer IS NOT NULL"
"is for something" = "quantity > 0"

[transform]
sql = "SELECT order_id, customer, quantity * cents AS total_cents FROM source"

[sink]
topic = "{totals}"
key = "customer"
format = "json"

[dead_letters]
topic = "{dead_letters}"
"""


class Order(NamedTuple):
    """A record of the topic of orders."""

    number: int
    key: bytes
    value: bytes
    total_cents: int
    is_broken: bool
    """It cannot be read, or breaks a rule."""


def order(number: int) -> Order:
    """The order of that number."""
    customer: str | None = f"customer-{number * 7919 % _CUSTOMERS}"
    key = str(customer).encode()
    quantity, cents = 1 + number % 5, 100 + number * 37 % 9_900
    turn, place = divmod(number, _EACH_IS_BROKEN)
    is_broken = place == _EACH_IS_BROKEN // 2
    if is_broken and turn % 3 == 0:
        quantity = 0
    elif is_broken and turn % 3 == 1:
        customer = None
    fields = {"order_id": number, "customer": customer, "quantity": quantity, "cents": cents}
    value = json.dumps(fields).encode()
    if is_broken and turn % 3 == 2:
        value = value[:-10]  # as a writer leaves it that was cut off
    return Order(number, key, value, quantity * cents, is_broken)


def pipeline_file(bootstrap: str) -> str:
    """The text of the `pipeline.toml` that the demo runs."""
    return _FILE.format(
        name=PIPELINE, bootstrap=bootstrap, orders=ORDERS, totals=TOTALS, dead_letters=DEAD_LETTERS
    )
