"""Clients of transactions in a simulated world, which note what they were promised.

`main(shape)` runs a broker, stops and starts it on the way, and lets clients of both generations
commit, abort, run out of time, be fenced and leave transactions open over the stop, with offsets in
them, beside an idempotent producer that sends batches twice and a reader. What must hold while the
broker runs is checked at once; `txn_judge` holds power cuts against the rest.

Run as a program it prints the trace hash of each seed, so that processes can be compared.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from onceflow.testing.faults import NetFaults
from onceflow.testing.world import World, run
from onceflow.wire.api import ApiKey
from tests.sim.txn.client import (
    AGAIN,
    END,
    INIT,
    OFFSETS,
    PLACES,
    PRODUCE,
    TIMEOUT_MS,
    Caller,
    Requests,
    make_batch as batch_of,
)
from tests.sim.txn.history import (
    NEW,
    OLD,
    Ending,
    Fenced,
    History,
    Identity,
    Initialised,
    Place,
    PromiseBroken,
    Sent,
    Transaction,
)
from tests.sim.txn.others import Idempotent, Reader
from tests.unit.broker.broker_under_test import simulated_broker

FAULTS = NetFaults(
    delay_s=(0.0001, 0.001),
    split_chance=0.05,
    refuse_chance=0.02,
    reset_chance=0.01,
    lose_response_chance=0.02,
)


class Shape(NamedTuple):
    """How large a workload is, and on what kind of broker it runs."""

    clients: tuple[int, ...] = (NEW, OLD, NEW)
    """Their generations."""
    rounds: tuple[int, ...] = (2, 1)
    """Transactions of each client between a start and a stop."""
    durability: str = "fsync"
    gathered_bytes: int = 1 << 20
    """Little room makes a broker refuse in the middle of ending a transaction."""
    journal_bytes: int = 64 << 10
    segment_bytes: int = 2500

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "durability": self.durability,
            "journal_first_file_bytes": self.journal_bytes,
            "journal_largest_file_bytes": self.journal_bytes,
            "journal_files": 2,
            "journal_gathered_bytes": self.gathered_bytes,
            "os_checkpoint_bytes": 3000,
            "transaction_state_log_num_partitions": 2,
            "log_retention_check_interval_ms": 700,
            "log_cleaner_backoff_ms": 700,
        }


FATES = ("commit", "commit", "commit", "abort", "abort", "time out", "fenced", "left open")
"""What becomes of transactions: drawn as from a pack of cards, so that each comes up soon."""


class Transactor:
    """One client with a transactional id."""

    def __init__(self, world: World, number: int, generation: int, history: History) -> None:
        self.transactional_id = f"transactor-{number}"
        self.group = f"group-{number}"
        self.generation = generation
        self._history = history
        self._rand = world.rand.fork(self.transactional_id)
        self.caller = Caller(self.transactional_id, self._rand, history.failures)
        self.rival = Caller(f"rival-{number}", self._rand.fork("rival"), history.failures)
        self._identity: Identity | None = None
        self._sequences: dict[Place, int] = {}
        self._open: Transaction | None = None
        self._fates: list[str] = []
        self._count = 0
        self._records = 0
        history.busy[self.transactional_id] = []

    async def run(self, transactions: int) -> None:
        for _ in range(transactions):
            if self._identity is None:
                self._take(await self._init(self.caller, None))
            await self._transaction()
            await asyncio.sleep(self._rand.uniform(0, 0.02))

    # --- requests ---------------------------------------------------------------------------------

    async def _settled(self, ask: Callable[[], Awaitable[tuple[str, Any]]]) -> tuple[str, Any]:
        """Code and answer of a request, asked again for as long as the code says so."""
        busy = self._history.busy[self.transactional_id]
        asked = self._history.now
        at = len(busy)
        busy.append((asked, 1 << 62))
        while True:
            code, answer = await ask()
            if code not in AGAIN:
                busy[at] = asked, self._history.now
                return code, answer
            await asyncio.sleep(self._rand.uniform(0.005, 0.05))

    async def _init(self, caller: Caller, expected: Identity | None) -> Identity | None:
        asked = self._history.now
        fields = Requests.init(self.transactional_id, TIMEOUT_MS, expected)

        async def ask() -> tuple[str, Any]:
            (answer,) = await caller.ask(ApiKey.INIT_PRODUCER_ID, INIT, fields)
            return answer["error_code"], answer

        code, answer = await self._settled(ask)
        if code != "NONE":
            if expected is None:
                raise PromiseBroken(f"{self.transactional_id} gets no identity: {code}")
            return None
        identity = Identity(answer["producer_id"], answer["producer_epoch"])
        now = self._history.now
        self._history.inits.append(
            Initialised(self.transactional_id, TIMEOUT_MS, expected, identity, asked, now)
        )
        return identity

    def _take(self, identity: Identity | None, *, by_init: bool = True) -> None:
        """Goes on under another identity, which puts the one before out."""
        if self._identity is not None and identity != self._identity:
            self._note_fenced(self._identity, by_init=by_init)
        self._identity = identity
        self._sequences = {}

    def _note_fenced(self, identity: Identity, *, by_init: bool) -> None:
        who = self.transactional_id, self.generation, identity
        self._history.fenced.append(Fenced(self._history.now, *who, by_init))

    async def _start_again(self) -> None:
        """After an error: the identity that comes next, asked for by the one that is known or, when
        that is refused, by nobody."""
        known = self._identity if self._rand.randrange(2) else None
        identity = await self._init(self.caller, known)
        self._take(identity or await self._init(self.caller, None))

    async def _transaction(self) -> None:
        if self._identity is None:
            raise PromiseBroken("a transaction without an identity")
        fate = self._choose()
        transaction = self._open
        if transaction is None:
            self._count += 1
            transaction = Transaction(
                self.transactional_id, self._count, self.generation, self._identity
            )
            self._history.transactions.append(transaction)
        self._open = None
        if not await self._fill(transaction):
            await self._start_again()
        elif fate == "left open":
            self._open = transaction
        elif fate in ("commit", "abort"):
            await self._finish(transaction, commit=fate == "commit")
        else:
            if fate == "time out":
                await asyncio.sleep(TIMEOUT_MS / 1000 + 1.0)
            else:
                await self._be_fenced()
            await self._is_out(transaction)

    def _choose(self) -> str:
        if not self._fates:
            self._fates = list(FATES)
            self._rand.shuffle(self._fates)
        return self._fates.pop()

    async def _fill(self, transaction: Transaction) -> bool:
        """Batches and perhaps an offset; False when the client was put out."""
        for _ in range(1 + self._rand.randrange(3)):
            place = PLACES[self._rand.randrange(len(PLACES))]
            if await self._produce(transaction, place) != "NONE":
                return False
        if not transaction.offset_asked and self._rand.randrange(2):
            return await self._commit_offset(transaction) == "NONE"
        return True

    async def _produce(self, transaction: Transaction, place: Place) -> str:
        values = []
        for _ in range(1 + self._rand.randrange(2)):
            self._records += 1
            filling = b"." * self._rand.randrange(300)
            values.append(b"%s/%d/%s" % (self.transactional_id.encode(), self._records, filling))
        sequence = self._sequences.get(place, 0)
        data = batch_of(transaction.identity, sequence, values, transactional=True)
        sent = Sent(place, sequence, tuple(values), data, self._history.now)
        transaction.batches.append(sent)
        if self.generation == OLD and (code := await self._add(transaction, place)) != "NONE":
            return code

        async def ask() -> tuple[str, Any]:
            fields = Requests.produce(self.transactional_id, [(place, data)])
            (answer,) = await self.caller.ask(ApiKey.PRODUCE, PRODUCE[self.generation], fields)
            row = answer["responses"][0]["partition_responses"][0]
            return row["error_code"], row

        code, row = await self._settled(ask)
        if code == "NONE":
            sent.offset, sent.acked_at = row["base_offset"], self._history.now
            self._sequences[place] = sequence + len(values)
        return code

    async def _add(self, transaction: Transaction, place: Place) -> str:
        fields = Requests.add(self.transactional_id, transaction.identity, place)

        async def ask() -> tuple[str, Any]:
            (answer,) = await self.caller.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields)
            (topic,) = answer["results_by_topic_v3_and_below"]
            return topic["results_by_partition"][0]["partition_error_code"], None

        return (await self._settled(ask))[0]

    async def _commit_offset(self, transaction: Transaction) -> str:
        transaction.offset_asked = True
        who = self.transactional_id, transaction.identity, self.group

        async def add() -> tuple[str, Any]:
            fields = Requests.add_offsets(*who)
            (answer,) = await self.caller.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, fields)
            return answer["error_code"], None

        async def commit() -> tuple[str, Any]:
            fields = Requests.offsets(*who, transaction.number)
            version = OFFSETS[self.generation]
            (answer,) = await self.caller.ask(ApiKey.TXN_OFFSET_COMMIT, version, fields)
            return answer["topics"][0]["partitions"][0]["error_code"], None

        if self.generation == OLD and (code := (await self._settled(add))[0]) != "NONE":
            return code
        code, _ = await self._settled(commit)
        if code == "NONE":
            transaction.offset_acked_at = self._history.now
        return code

    async def _finish(self, transaction: Transaction, *, commit: bool) -> None:
        end = transaction.end = Ending(commit, self._history.now)
        code, answer = await self._settled(lambda: self._end(transaction, commit=commit))
        end.code, end.answered_at = code, self._history.now
        if code != "NONE":
            await self._start_again()
        elif self.generation == NEW:
            end.identity = Identity(answer["producer_id"], answer["producer_epoch"])
            self._take(end.identity, by_init=False)

    async def _end(self, transaction: Transaction, *, commit: bool) -> tuple[str, Any]:
        fields = Requests.end(self.transactional_id, transaction.identity, commit=commit)
        (answer,) = await self.caller.ask(ApiKey.END_TXN, END[self.generation], fields)
        return answer["error_code"], answer

    async def _be_fenced(self) -> None:
        """Somebody else comes up under the same transactional id."""
        identity = await self._init(self.rival, None)
        known, self._identity = self._identity, identity
        if known is not None:
            self._note_fenced(known, by_init=True)

    async def _is_out(self, transaction: Transaction) -> None:
        """A zombie tries all that it can, in vain; then the client goes on under a new name."""
        later, self._identity = self._identity, transaction.identity
        if await self._produce(transaction, PLACES[0]) == "NONE":
            raise PromiseBroken(f"{transaction.identity} was put out, and could still write")
        end = transaction.end = Ending(True, self._history.now)
        code, _ = await self._settled(lambda: self._end(transaction, commit=True))
        end.code, end.answered_at = code, self._history.now
        if code == "NONE":
            raise PromiseBroken(f"{transaction.identity} was put out, and could still commit")
        if later == transaction.identity:  # it ran out of time: nobody has a newer one yet
            await self._start_again()
        else:
            self._identity = later
            self._sequences = {}


async def make_topics(caller: Caller, segment_bytes: int) -> None:
    """One topic that is compacted and one that is not, of small segments."""
    small = {"internal.segment.bytes": str(segment_bytes)}
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    for name, partitions, configs in (("a", 2, small), ("b", 1, small | compacted)):
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        fields = {"topics": [topic], "timeout": 1000}
        code = None
        while code not in ("NONE", "TOPIC_ALREADY_EXISTS"):  # it may not fit behind what waits
            (answer,) = await caller.ask(ApiKey.CREATE_TOPICS, 7, fields)
            code = answer["topics"][0]["error_code"]


def workload(shape: Shape) -> Callable[[World], Awaitable[History]]:
    """What to run in a world."""

    async def main(world: World) -> History:
        history = History(world.disk)
        clients = [
            Transactor(world, number, generation, history)
            for number, generation in enumerate(shape.clients)
        ]
        plain, reader = Idempotent(world, history), Reader(world, history)
        callers = [plain.caller, reader.caller]
        callers += [caller for each in clients for caller in (each.caller, each.rival)]
        for number, transactions in enumerate(shape.rounds):
            # A name of its own: what it draws at random is not what the one before drew.
            host = f"broker-{number}"
            async with simulated_broker(world, host=host, **shape.settings) as running:
                for caller in callers:
                    caller.running = running
                if number == 0:
                    await make_topics(reader.caller, shape.segment_bytes)
                reading = asyncio.create_task(reader.run())
                await asyncio.gather(
                    plain.run(2 * transactions), *(each.run(transactions) for each in clients)
                )
                reading.cancel()
        world.net.heal()
        return history

    return main


SHAPES = {
    "fsync": Shape(),
    "crowded": Shape(gathered_bytes=600),
    "os": Shape(durability="os"),
    "rolling": Shape(rounds=(3,), journal_bytes=16 << 10, segment_bytes=600),
}
"""Those of the tests."""

if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        for each in SHAPES.values():
            print(run(number, workload(each), faults=FAULTS)[1])
