"""What goes wrong in the demo: who is hit, and at which named point of a batch."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

COMMITTED: Final = "after EndTxn"
"""The point that a driver reaches when a batch is committed, before Spark has noted that."""


class Victim(Enum):
    """Who is hit."""

    WORKER = "a Python worker"
    DRIVER = "the driver, Python and JVM"
    BROKER = "the broker"
    ZOMBIE = "nobody"
    """The driver is stopped, taken for dead and replaced, and then goes on."""


class Strike(NamedTuple):
    """One thing that goes wrong."""

    victim: Victim
    point: str
    words: str
    then: str
    """What is done about it."""


STRIKES: Final = (
    Strike(
        Victim.WORKER,
        "mid-write",
        "Python worker killed while it writes",
        "the batch is written again",
    ),
    Strike(Victim.BROKER, "before EndTxn", "broker killed inside a transaction", "it starts again"),
    Strike(
        Victim.DRIVER,
        COMMITTED,
        "driver killed after the commit, before Spark notes it",
        "Spark starts again",
    ),
    Strike(
        Victim.ZOMBIE,
        "before EndTxn",
        "driver frozen, replaced, woken up",
        "a second Spark starts",
    ),
)


class Survived(NamedTuple):
    """A strike, and how it went on."""

    strike: Strike
    at_s: float
    """When it was, in seconds from the beginning."""
    again_after_s: float
    """From the strike to the next batch that was committed."""
    note: str = ""


def planned(count: int) -> list[Strike]:
    """So many of them, from the first on, and round again."""
    return [STRIKES[number % len(STRIKES)] for number in range(count)]
