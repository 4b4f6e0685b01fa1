"""The count at the end: what the orders must have led to, held against what readers found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable
from typing import Final, NamedTuple, TypeVar

from onceflow.demo.orders import order
from onceflow.demo.reading import READ_COMMITTED, READ_UNCOMMITTED, Output, read_all

_FIELDS: Final = ("order_id", "total_cents")
Thing = TypeVar("Thing", bound=Hashable)


class Count(NamedTuple):
    """What was found; exact if every order is there once, where it belongs, with its total."""

    orders: int
    broken: int
    """Orders that belong into the dead letters."""
    totals: int
    dead_letters: int
    duplicates: int
    losses: int
    strangers: int
    """Rows that follow from no order, or from one that belongs elsewhere."""
    hidden: int
    """Written in transactions that were aborted: there, and never shown."""
    cents: int
    cents_expected: int

    @property
    def is_exact(self) -> bool:
        wrong = self.duplicates + self.losses + self.strangers
        return not wrong and self.cents == self.cents_expected


class Deviation(NamedTuple):
    """How two bags differ."""

    duplicates: int
    losses: int
    strangers: int


def count(bootstrap: str, orders: int) -> Count:
    """Reads everything twice: as anybody should, and with what was aborted."""
    shown = read_all(bootstrap, READ_COMMITTED)
    written = read_all(bootstrap, READ_UNCOMMITTED)
    return judge(orders, shown, written.rows - shown.rows)


def judge(orders: int, shown: Output, hidden: int) -> Count:
    """By the number and the total of each good order, and by each byte of the broken ones."""
    good: Counter[tuple[int, int]] = Counter()
    broken: Counter[bytes] = Counter()
    for each in map(order, range(orders)):
        if each.is_broken:
            broken[each.value] += 1
        else:
            good[each.number, each.total_cents] += 1
    found = Counter(map(_row, shown.totals))
    of_totals = deviation(good, found)
    of_letters = deviation(broken, Counter(shown.dead_letters))
    duplicates, losses, strangers = map(sum, zip(of_totals, of_letters, strict=True))
    return Count(
        orders=orders,
        broken=broken.total(),
        totals=len(shown.totals),
        dead_letters=len(shown.dead_letters),
        duplicates=duplicates,
        losses=losses,
        strangers=strangers,
        hidden=hidden,
        cents=sum(cents * times for (_, cents), times in found.items()),
        cents_expected=sum(cents for _, cents in good),
    )


def _row(value: bytes) -> tuple[int, int]:
    row = json.loads(value)
    number, cents = (int(row[name]) for name in _FIELDS)
    return number, cents


def deviation(expected: Counter[Thing], found: Counter[Thing]) -> Deviation:
    """`expected` has each thing once."""
    more = found - expected
    duplicates = sum(times for each, times in more.items() if each in expected)
    return Deviation(duplicates, (expected - found).total(), more.total() - duplicates)
