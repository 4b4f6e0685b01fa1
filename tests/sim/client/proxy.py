"""What stands between the clients and the broker, and loses, doubles, holds back and reorders their
requests.

TCP does neither double nor reorder bytes, so each fault is one that a network of connections can
have: a request is lost or late only together with its connection; a copy arrives on a connection of
its own. Late copies of requests that follow each other on one connection arrive in any order.

A request of the older protocol is doubled only where its answer is lost: that protocol has no
defence against a copy of which the client knows nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from onceflow.runtime.rand import Rand
from onceflow.testing.connection import SimConnection, TappedWrite
from onceflow.testing.faults import Deliver, Redeliver, Side, TapAction
from onceflow.testing.loop import SimLoop
from onceflow.wire.api import ApiKey
from tests.sim.client.history import OLD, History

LONGEST_DELAY_S: Final = 12.0
"""So late a copy may come."""
_EXPONENTS: Final = (-2.5, 1.08)
"""Of the delays: most copies come while the program is at what follows."""
_SOON_S: Final = 0.02
STRUCK: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
    }
)
"""All that change something."""


class Fate(Enum):
    """What becomes of a request."""

    DOUBLED = "it arrives, and again later"
    DOUBLED_UNANSWERED = "it arrives, the answer is lost, and it arrives again later"
    LOST = "the connection breaks before it arrives"
    LATE = "the connection breaks, and it arrives later"
    SILENT = "nothing arrives any more, and nobody says so; some of it arrives later"
    ANSWER_LOST = "it arrives, and the connection breaks before the answer"
    ANSWER_MISSING = "it arrives, and the answer does not, and nobody says so"


class Client(NamedTuple):
    """Who is behind a host."""

    transactional_id: str | None
    generation: int


class Proxy:
    """The tap of a simulated network; strikes each of the `struck` requests with a `chance`."""

    def __init__(
        self,
        loop: SimLoop,
        rand: Rand,
        history: History,
        *,
        chance: float,
        struck: frozenset[ApiKey] = STRUCK,
    ) -> None:
        self._loop = loop
        self._rand = rand
        self._history = history
        self._chance = chance
        self._struck = struck
        self._silent: set[int] = set()
        self._unanswered: set[int] = set()
        self.clients: dict[str, Client] = {}

    def __call__(self, write: TappedWrite) -> list[TapAction]:
        number = write.connection.number
        if write.direction is Side.SERVER:
            return [] if number in self._silent | self._unanswered else [Deliver(write.data)]
        client = self.clients.get(write.connection.addresses[Side.CLIENT].host)
        key = int.from_bytes(write.data[4:6], "big")
        if client is None or key not in self._struck:
            return [] if number in self._silent else [Deliver(write.data)]
        if number in self._silent:
            return self._later_or_never(write, client, ApiKey(key))
        if self._rand.uniform(0.0, 1.0) >= self._chance:
            return [Deliver(write.data)]
        return self._strike(write, client, ApiKey(key))

    def _strike(self, write: TappedWrite, client: Client, key: ApiKey) -> list[TapAction]:
        fates = [fate for fate in Fate if fate is not Fate.DOUBLED or client.generation != OLD]
        fate = fates[self._rand.randrange(len(fates))]
        self._history.count(f"{key.name} {fate.name}")
        connection, data = write.connection, write.data
        match fate:
            case Fate.DOUBLED:
                return [Deliver(data), self._copy(write, client, key)]
            case Fate.DOUBLED_UNANSWERED:
                self._lose_answers(connection)
                return [Deliver(data), self._copy(write, client, key)]
            case Fate.LOST:
                self._break_soon(connection)
                return []
            case Fate.LATE:
                self._break_soon(connection)
                return [self._copy(write, client, key)]
            case Fate.SILENT:
                self._silent.add(connection.number)
                return self._later_or_never(write, client, key)
            case Fate.ANSWER_LOST:
                connection.lose_responses()
            case Fate.ANSWER_MISSING:
                self._unanswered.add(connection.number)
        return [Deliver(data)]

    def _lose_answers(self, connection: SimConnection) -> None:
        if self._rand.randrange(2):
            connection.lose_responses()
        else:
            self._unanswered.add(connection.number)

    def _break_soon(self, connection: SimConnection) -> None:
        """Until then nothing of it arrives: what follows a lost request is lost, too."""
        self._silent.add(connection.number)
        self._loop.call_later(self._rand.uniform(0.0, _SOON_S), connection.reset)

    def _later_or_never(self, write: TappedWrite, client: Client, key: ApiKey) -> list[TapAction]:
        return [self._copy(write, client, key)] if self._rand.randrange(2) else []

    def _copy(self, write: TappedWrite, client: Client, key: ApiKey) -> Redeliver:
        if key is ApiKey.INIT_PRODUCER_ID and client.transactional_id is not None:
            self._history.repeated_inits.add(client.transactional_id)
        delay = 10.0 ** self._rand.uniform(*_EXPONENTS)
        return Redeliver(write.data, after_s=min(LONGEST_DELAY_S, delay))
