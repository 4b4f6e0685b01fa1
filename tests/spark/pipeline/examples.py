"""The examples, and what has to come out of each: a computation of the same input in plain Python,
record by record as a client that others wrote has read them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pytest

from tests.spark.pipeline.world import Read

Inputs = Mapping[str, Sequence[Read]]
"""The records of each topic."""
Ends = Mapping[tuple[str, int], int]
"""Up to where each partition of each topic has been read."""


_SKETCH: Final = 5 * 0.05
"""Spark counts distinct values with a standard deviation of 5 %; what is exact is `views`."""


class Letter(NamedTuple):
    """A dead letter, and where it comes from."""

    key: bytes | None
    value: bytes | None
    error: str
    topic: str
    partition: int
    offset: int


class Due(NamedTuple):
    """What has to be in the output: rows by their keys, in order, and dead letters."""

    rows: Mapping[str, list[Any]]
    letters: Counter[Letter]


class Example(NamedTuple):
    """One of `examples/`."""

    directory: str
    name: str
    inputs: tuple[str, ...]
    output: str
    refused: str
    due: Callable[[Inputs, Sequence[Ends]], Due]
    is_ordered: bool = True
    """Whether there is an order for the rows of a key."""

    @property
    def topics(self) -> tuple[str, ...]:
        return (*self.inputs, self.output, self.refused)

    @property
    def checkpoint(self) -> str:
        """Beside its file."""
        return f"state/{self.name}"


class _Book:
    """Collects what is due."""

    def __init__(self) -> None:
        self.rows: defaultdict[str, list[Any]] = defaultdict(list)
        self.letters: Counter[Letter] = Counter()

    def refuse(self, topic: str, record: Read, error: str) -> None:
        place = (topic, record.partition, record.offset)
        self.letters[Letter(record.key, record.value, error, *place)] += 1

    @property
    def due(self) -> Due:
        return Due(self.rows, self.letters)


# --- order_totals -------------------------------------------------------------------------------


def _order_error(value: bytes) -> str | None:
    try:
        order = json.loads(value)
    except ValueError:
        return "the value is not JSON"
    if not isinstance(order["order_id"], int):
        return "the value does not fit the schema of the JSON"
    if not order["lines"]:
        return "breaks the rule has lines: size(lines) > 0"
    if any(line["quantity"] < 1 for line in order["lines"]):
        rule = "forall(lines, line -> line.quantity > 0)"
        return f"breaks the rule quantities are positive: {rule}"
    return None


def _order_totals(inputs: Inputs, batches: Sequence[Ends]) -> Due:
    book = _Book()
    for record in inputs["orders"]:
        if error := _order_error(record.value or b""):
            book.refuse("orders", record, error)
            continue
        order = json.loads(record.value or b"")
        total = sum(line["quantity"] * line["cents"] for line in order["lines"])
        row = {"order_id": order["order_id"], "customer": order["customer"], "total_cents": total}
        book.rows[order["customer"]].append((row, {"kind": b"order total"}))
    return book.due


# --- page_views ---------------------------------------------------------------------------------


def in_batches(
    records: Sequence[Read], topic: str, batches: Sequence[Ends]
) -> Iterator[list[Read]]:
    """The records of a topic that each batch has read."""
    before: Ends = {}
    for ends in batches:
        yield [
            each
            for each in records
            if before.get((topic, each.partition), 0)
            <= each.offset
            < ends.get((topic, each.partition), 0)
        ]
        before = ends


def _page_views(inputs: Inputs, batches: Sequence[Ends]) -> Due:
    """Each batch writes the counts that it has changed."""
    book = _Book()
    counts: Counter[tuple[str, str]] = Counter()
    visitors = defaultdict(set)
    for records in in_batches(inputs["views"], "views", batches):
        changed = set()
        for record in records:
            at, page, visitor = (record.value or b"").decode().split(",")
            if at == "yesterday":
                error = "the value does not fit the schema of the CSV"
                book.refuse("views", record, error)
                continue
            group = page, f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M}"
            counts[group] += 1
            visitors[group].add(visitor)
            changed.add(group)
        for group in changed:
            seen = pytest.approx(len(visitors[group]), rel=_SKETCH, abs=1)
            row = {"page": group[0], "minute": group[1], "views": counts[group], "visitors": seen}
            book.rows[" ".join(group)].append((row, {}))
    return book.due


# --- paid_orders --------------------------------------------------------------------------------


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _paid_orders(inputs: Inputs, batches: Sequence[Ends]) -> Due:
    book = _Book()
    orders = defaultdict(list)
    for record in inputs["paid-orders-orders"]:
        order = json.loads(record.value or b"")
        orders[order["order_id"]].append(order)
    for record in inputs["paid-orders-payments"]:
        payment = json.loads(record.value or b"")
        if payment["cents"] <= 0:
            error = "breaks the rule pays something: cents > 0"
            book.refuse("paid-orders-payments", record, error)
            continue
        paid = _moment(payment["paid_at"])
        for order in orders[payment["order_id"]]:
            ordered = _moment(order["ordered_at"])
            if ordered <= paid <= ordered + timedelta(days=1):
                row = {
                    "order_id": order["order_id"],
                    "cents": order["cents"],
                    "open_cents": order["cents"] - payment["cents"],
                    "method": payment["method"],
                    "paid_at": f"{paid:%Y-%m-%dT%H:%M:%S}.000Z",
                }
                book.rows[str(order["order_id"])].append((row, {}))
    return book.due


# --- sensor_readings ----------------------------------------------------------------------------


def _sensor_readings(inputs: Inputs, batches: Sequence[Ends]) -> Due:
    book = _Book()
    for record in inputs["readings"]:
        try:
            reading = json.loads(record.value or b"")
        except ValueError:
            book.refuse("readings", record, "the value is not JSON")
            continue
        celsius = (reading.get("fahrenheit", 9999) - 32.0) / 1.8
        if not -90.0 < celsius < 60.0:
            book.refuse("readings", record, "no such temperature")
            continue
        row = {"number": reading["number"], "celsius": pytest.approx(celsius)}
        book.rows[reading["sensor"]].append(({"sensor": reading["sensor"], **row}, {}))
    return book.due


EXAMPLES: Final = {
    each.directory: each
    for each in (
        Example(
            "order_totals",
            "order-totals",
            ("orders",),
            "order-totals",
            "orders-refused",
            _order_totals,
        ),
        Example(
            "page_views",
            "page-views",
            ("views",),
            "views-per-minute",
            "views-refused",
            _page_views,
        ),
        Example(
            "paid_orders",
            "paid-orders",
            ("paid-orders-orders", "paid-orders-payments"),
            "paid-orders",
            "paid-orders-refused",
            _paid_orders,
            is_ordered=False,
        ),
        Example(
            "sensor_readings",
            "sensor-readings",
            ("readings",),
            "readings-clean",
            "readings-refused",
            _sensor_readings,
        ),
    )
}
