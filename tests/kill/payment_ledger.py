"""What a run was promised, held against what is there: pure bookkeeping.

A payment that was acknowledged, or that a reader has seen, must stay where it was; no payment is
there twice, however often it was sent; and payments stay in the order they were sent in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tests.kill.payment_clients import Place


class Verdict(NamedTuple):
    """How many payments, of which kind."""

    acknowledged: int
    found: int
    lost: int
    """Acknowledged, and not found at that place."""
    vanished: int
    """Seen by a reader, and not found at that place later."""
    out_of_order: int
    """Found behind a payment that was sent after them."""
    repeated: int
    """Found once more."""

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.vanished or self.out_of_order or self.repeated)


def judge(
    acknowledged: Iterable[tuple[Place, int]],
    seen: Iterable[tuple[Place, int]],
    found: Mapping[Place, int],
) -> Verdict:
    """Compares all that is known of one topic with what it holds.

    Two payments may have been acknowledged at one place: then at least one of them is lost.
    """
    out_of_order = repeated = 0
    known: set[int] = set()
    latest: dict[int, int] = {}
    for place in sorted(found):
        number = found[place]
        if number in known:
            repeated += 1
        elif number < latest.get(place.partition, -1):
            out_of_order += 1
        known.add(number)
        latest[place.partition] = max(number, latest.get(place.partition, -1))
    promised = set(acknowledged)
    return Verdict(
        len(promised),
        len(found),
        _missing(promised, found),
        _missing(seen, found),
        out_of_order,
        repeated,
    )


def _missing(expected: Iterable[tuple[Place, int]], found: Mapping[Place, int]) -> int:
    return sum(found.get(place) != number for place, number in expected)
