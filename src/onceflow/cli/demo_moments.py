"""The dangerous moments of a consume-transform-produce loop: when who is killed."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Victim(Enum):
    """Who is hit at a moment."""

    WORKER = "worker"
    BROKER = "broker"
    ZOMBIE = "zombie"
    """Nobody is killed: the worker sleeps, is taken for dead, is replaced, and wakes up."""


class Point(Enum):
    """Where in its transaction a worker stops to be hit."""

    READ = "read"
    WRITTEN = "written"
    OFFSETS_SENT = "offsets sent"
    COMMITTING = "committing"
    COMMITTED = "committed"


class Moment(NamedTuple):
    """One thing that goes wrong."""

    victim: Victim
    point: Point
    words: str


MOMENTS: Final = (
    Moment(Victim.WORKER, Point.READ, "worker killed after it has read, before it writes"),
    Moment(Victim.WORKER, Point.WRITTEN, "worker killed after it has written, before it commits"),
    Moment(Victim.WORKER, Point.OFFSETS_SENT, "worker killed with its offsets sent, not committed"),
    Moment(Victim.WORKER, Point.COMMITTED, "worker killed as soon as it has committed"),
    Moment(Victim.BROKER, Point.WRITTEN, "broker killed inside a transaction"),
    Moment(Victim.BROKER, Point.OFFSETS_SENT, "broker killed right before the commit reaches it"),
    Moment(Victim.BROKER, Point.COMMITTING, "broker killed while the commit is on its way"),
    Moment(Victim.ZOMBIE, Point.OFFSETS_SENT, "worker replaced while it sleeps, wakes up, commits"),
)
