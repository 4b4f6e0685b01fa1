"""What programs that use the client did, and what they were told: the only thing the judge knows.

Every entry carries the number of the moment at which it was made (`History.tick`), so that before
and after are plain comparisons. An outcome is what the client said, never what somebody hopes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.sim.txn.history import NEVER, Place

OLD, NEW = 1, 2
"""Levels of `transaction.version`: one epoch for a producer, one epoch for each transaction."""


class Outcome(Enum):
    """Of a record, as its receipt says it."""

    PENDING = "nobody has said anything"
    ACKED = "acknowledged"
    NOT_APPLIED = "not there"
    UNKNOWN = "perhaps there"


class End(Enum):
    """Of a transaction, as the producer's methods say it."""

    OPEN = "left open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    NOT_COMMITTED = "refused, and its abort failed too"
    UNKNOWN = "perhaps committed"


@dataclass(slots=True, eq=False)
class Sent:
    """A record; no other has its value."""

    place: Place
    value: bytes
    asked_at: int
    outcome: Outcome = Outcome.PENDING
    offset: int = -1
    """-1 where the client does not say."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One transaction."""

    began_at: int
    must_succeed: bool = False
    """Nothing is in its way any more."""
    records: list[Sent] = field(default_factory=list)
    offset: int | None = None
    """What it commits for its group; later ones are larger."""
    commit_asked_at: int = NEVER
    committed_at: int = NEVER
    """When the program was told so."""
    end: End = End.OPEN
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Used:
    """One producer, from its start to its end."""

    name: str
    transactional_id: str | None = None
    generation: int = NEW
    init_asked_at: int = NEVER
    initialised_at: int = NEVER
    fenced_at: int = NEVER
    records: list[Sent] = field(default_factory=list)
    """All of them, in the order in which they were sent."""
    attempts: list[Attempt] = field(default_factory=list)


class Delivery(NamedTuple):
    """A record that a reader was given."""

    at: int
    place: Place
    offset: int
    value: bytes


class Looked(NamedTuple):
    """What the offset of a group was, somewhen between two moments."""

    asked_at: int
    answered_at: int
    group: str
    offset: int


@dataclass(slots=True)
class ReadBy:
    """One reader of all partitions, from their first record to their last."""

    name: str
    read_committed: bool
    deliveries: list[Delivery] = field(default_factory=list)
    errors: int = 0


@dataclass(slots=True)
class History:
    """All programs."""

    producers: list[Used] = field(default_factory=list)
    readers: list[ReadBy] = field(default_factory=list)
    final: list[Sent] = field(default_factory=list)
    """Records outside of transactions that had to be acknowledged: nothing was in their way."""
    looked: list[Looked] = field(default_factory=list)
    repeated_inits: set[str] = field(default_factory=set)
    """Transactional ids of which the network held back or doubled an InitProducerId: its copy
    fences whoever has come in between, as another producer would."""
    complaints: list[str] = field(default_factory=list)
    """What was plainly wrong when it happened."""
    events: dict[str, int] = field(default_factory=dict)
    """How often what the network and the broker did to the clients."""
    now: int = 0

    def tick(self) -> int:
        """The next moment."""
        self.now += 1
        return self.now

    def count(self, event: str) -> None:
        self.events[event] = self.events.get(event, 0) + 1

    def told(self) -> str:
        """All of it in a form that can be compared."""
        parts = self.producers, self.readers, self.final, self.looked, self.complaints
        return repr((parts, sorted(self.repeated_inits), sorted(self.events.items())))
