"""What clients of transactions asked for and were promised, each with the disk's op at that moment.

A power cut at a boundary keeps what was acknowledged at an op up to that boundary, and can know
nothing of what was asked for behind it: `by(...)` and the properties here say it in these words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from onceflow.testing.disk import SimDisk

NEVER = 1 << 62
OLD, NEW = 1, 2
"""The generations of the protocol: one epoch for a client, one epoch for each transaction."""


class PromiseBroken(AssertionError):
    """Something that was promised is not so."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Identity(NamedTuple):
    """Who a producer says it is."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class Sent:
    """A batch: its bytes, and what was answered."""

    place: Place
    sequence: int
    values: tuple[bytes, ...]
    data: bytes
    asked_at: int
    offset: int = -1
    acked_at: int = NEVER


@dataclass(slots=True)
class Ending:
    """An EndTxn."""

    commit: bool
    asked_at: int
    answered_at: int = NEVER
    code: str = ""
    identity: Identity | None = None
    """Who the producer is from then on, by the answer."""

    def is_acked(self, boundary: int) -> bool:
        return self.answered_at <= boundary and self.code == "NONE"

    def is_refused(self, boundary: int) -> bool:
        return self.answered_at <= boundary and self.code != "NONE"


@dataclass(slots=True)
class Transaction:
    """What one client did between two ends."""

    transactional_id: str
    number: int
    """Counts the transactions of the client, and is the offset that it commits."""
    generation: int
    identity: Identity
    batches: list[Sent] = field(default_factory=list)
    offset_acked_at: int = NEVER
    offset_asked: bool = False
    end: Ending | None = None

    def may_be_visible(self, boundary: int) -> bool:
        end = self.end
        return end is not None and end.commit and end.asked_at <= boundary

    def must_be_visible(self, boundary: int) -> bool:
        end = self.end
        return end is not None and end.commit and end.is_acked(boundary)

    def is_refused(self, boundary: int) -> bool:
        return self.end is not None and self.end.is_refused(boundary)

    @property
    def acked(self) -> list[Sent]:
        return [each for each in self.batches if each.acked_at != NEVER]


@dataclass(slots=True)
class Initialised:
    """An InitProducerId that was answered with an identity."""

    transactional_id: str | None
    timeout_ms: int
    expected: Identity | None
    identity: Identity
    asked_at: int
    acked_at: int


class Shown(NamedTuple):
    """What a reader was told of a partition."""

    at: int
    place: Place
    high_watermark: int
    last_stable_offset: int


class Fenced(NamedTuple):
    """An identity that a later one of the same transactional id has put out."""

    at: int
    transactional_id: str
    generation: int
    identity: Identity
    by_init: bool
    """Else by the end of its last transaction, which it may ask for again."""


@dataclass(slots=True)
class History:
    """What all clients saw."""

    disk: SimDisk
    transactions: list[Transaction] = field(default_factory=list)
    inits: list[Initialised] = field(default_factory=list)
    plain: list[Sent] = field(default_factory=list)
    """The batches of the idempotent producer, in its order."""
    fenced: list[Fenced] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    busy: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """For each transactional id when something was asked for, and when it was answered."""
    failures: list[str] = field(default_factory=list)
    made: int = NEVER
    """When all topics were there."""

    @property
    def now(self) -> int:
        return len(self.disk.ops)

    def told(self) -> str:
        """All of it in a form that can be compared."""
        parts = (self.transactions, self.inits, self.plain, self.fenced, self.shown, self.failures)
        return repr(parts)

    def facts(self, boundary: int) -> tuple[int, ...]:
        """Two boundaries with equal facts differ in nothing that a judge knows."""
        ends = [each.end for each in self.transactions if each.end is not None]
        return (
            sum(end.asked_at <= boundary for end in ends),
            sum(end.answered_at <= boundary for end in ends),
            sum(sent.acked_at <= boundary for each in self.transactions for sent in each.batches),
            sum(each.offset_acked_at <= boundary for each in self.transactions),
            sum(each.acked_at <= boundary for each in self.inits),
            sum(each.acked_at <= boundary for each in self.plain),
            sum(each.at <= boundary for each in self.fenced),
            sum(each.at <= boundary for each in self.shown),
            sum(asked <= boundary for each in self.busy.values() for asked, _ in each),
        )

    def is_quiet(self, transactional_id: str, boundary: int) -> bool:
        """Whether all that was asked for about an id had been answered."""
        return all(
            answered <= boundary
            for asked, answered in self.busy.get(transactional_id, [])
            if asked <= boundary
        )
