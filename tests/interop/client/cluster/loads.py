"""Loads that go on while nodes are killed, each with a book of what it was promised; and whether
the log keeps it: each committed transaction once, in order, whole, and none of the others."""

from __future__ import annotations

import asyncio
import itertools
import threading
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import ClassVar, Final

from onceflow.client.admin.admin import Admin
from onceflow.client.codec.transactions import OffsetToCommit
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.errors.requests import AbortableError, ClientError, UnknownOutcome
from onceflow.client.producer.producer import Producer
from onceflow.client.producer.receipts import Receipt
from onceflow.client.settings.consumer import FetcherSettings
from onceflow.client.transactions.states import ProducerState
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.types import TopicPartition
from tests.interop.client.cluster.strike import Moment, Strike
from tests.interop.client.cluster.three_nodes import (
    Records,
    committed_offset,
    new_places,
    read_committed,
)
from tests.interop.client.worker.worker_process import result, start
from tests.interop.client.worker.workers import driver, settled
from tests.interop.harness import Names

PARTITIONS: Final = 6
ROWS: Final = 5
WINDOW: Final = 300
STOP_SECONDS: Final = 90.0
NOT_COMMITTED: Final = -1001
PATIENT: Final[Mapping[str, int]] = {"delivery_timeout_ms": 60_000, "request_timeout_ms": 10_000}
IMPATIENT: Final[Mapping[str, int]] = {"delivery_timeout_ms": 1500, "request_timeout_ms": 1000}
"""Gives up before another node takes over: commits without an answer, aborts, new producers."""


class Stuck(AssertionError):
    """A load does not go on."""


class Load(ABC):
    """Runs in a thread of its own from `start` to `stop`."""

    moments: ClassVar[tuple[Moment, ...]] = tuple(Moment)
    enough: ClassVar[int]
    """So many outcomes say that it goes on."""
    sending_takes_s: ClassVar[float] = 0.005
    """From the moment of sending on, so long something is under way."""

    def __init__(
        self,
        names: Names,
        label: str,
        places: list[TopicPartition],
        patience: Mapping[str, int] = PATIENT,
    ) -> None:
        self.names = names
        self.label = label
        self.places = places
        self.patience = patience
        self.strike = Strike()
        self.done = 0
        """How much has come to an outcome."""
        self.seen: Counter[str] = Counter()
        """What else happened: names of errors and decisions."""
        self._failure: str | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=label, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Lets it finish what it has begun; raises `Stuck`."""
        self._is_over.set()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise Stuck(f"{self.label} does not end within {STOP_SECONDS:g} s")
        self.check()

    def check(self) -> None:
        """Raises what the load has failed with, if it has."""
        assert self._failure is None, f"{self.label} has failed:\n{self._failure}"

    @property
    def goes_on(self) -> bool:
        return not self._is_over.is_set()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException:
            self._failure = traceback.format_exc()

    @abstractmethod
    def work(self) -> None:
        """As long as it `goes_on`."""

    @abstractmethod
    def deviations(self) -> list[str]:
        """Where the log is not what the book says; after `stop`."""


class Stream(Load):
    """An idempotent producer that counts up in every partition, and is told where each is."""

    moments = (Moment.SENDING,)
    enough = 5 * WINDOW

    def __init__(self, names: Names, label: str = "stream") -> None:
        super().__init__(names, label, new_places(names, label, PARTITIONS))
        self.placed: Records = {each.partition: [] for each in self.places}

    def work(self) -> None:
        asyncio.run(self._send())

    async def _send(self) -> None:
        waiting: deque[tuple[str, Receipt]] = deque()
        async with Producer(self.names.bootstrap, self.patience) as producer:
            for number in itertools.count():
                for topic, partition in self.places:
                    value = str(number)
                    receipt = await producer.send(topic, value.encode(), partition=partition)
                    waiting.append((value, receipt))
                self.strike.at(Moment.SENDING)
                while len(waiting) > (WINDOW if self.goes_on else 0):
                    await self._book(*waiting.popleft())
                if not self.goes_on:
                    return
                await asyncio.sleep(0.002)  # a load, no flood: all of it is read again

    async def _book(self, value: str, receipt: Receipt) -> None:
        delivery = await receipt
        self.placed[delivery.partition].append((delivery.offset, value))
        self.done += 1

    def deviations(self) -> list[str]:
        found = read_committed(self.names.bootstrap, self.places)
        return [
            f"{self.label}: partition {partition} is not what was acknowledged: "
            f"{_first_difference(placed, found[partition])}"
            for partition, placed in self.placed.items()
            if placed != found[partition]
        ]


class Follower(Load):
    """Our reader of committed records behind another load, to be stopped after it."""

    moments = ()
    enough = 1

    def __init__(self, load: Load) -> None:
        super().__init__(load.names, f"reader of {load.label}", load.places)
        self.read: Records = {each.partition: [] for each in self.places}

    def work(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        async with (
            Admin(self.names.bootstrap) as admin,
            Fetcher(admin.cluster, FetcherSettings.of(fetch_max_wait_ms=100)) as fetcher,
        ):
            fetcher.assign(dict.fromkeys(self.places, 0))
            while self.goes_on or not await self._is_at_end(admin, fetcher):
                for each in await fetcher.next_records(0.5):
                    value = each.value or b""
                    self.read[each.partition].append((each.offset, value.decode()))
                    self.done += 1

    async def _is_at_end(self, admin: Admin, fetcher: Fetcher) -> bool:
        ends = await admin.offset_ranges(self.places, read_committed=True)
        return all((fetcher.position(each) or 0) >= ends[each].latest for each in self.places)

    def deviations(self) -> list[str]:
        found = read_committed(self.names.bootstrap, self.places)
        return [
            f"{self.label}: partition {partition}: {_first_difference(found[partition], read)}"
            for partition, read in self.read.items()
            if read != found[partition]
        ]


class End(Enum):
    """What became of a transaction, as far as its producer knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"


class TransactionalLoad(Load):
    """Transactions, each with a number that stands in its records, and in the offset that it
    commits for a group."""

    def __init__(
        self, names: Names, label: str, version: int, patience: Mapping[str, int] = PATIENT
    ) -> None:
        super().__init__(names, label, new_places(names, label, PARTITIONS), patience)
        self.version = version
        self.transactional_id, self.group = names(f"{label}-id"), names(f"{label}-group")
        self.ledger = new_places(names, f"{label}-ledger")[0]
        self.ends: dict[int, End] = {}

    def entry(self, number: int) -> dict[TopicPartition, OffsetToCommit]:
        return {self.ledger: OffsetToCommit(number, f"transaction {number}")}

    def book(self, number: int, end: End) -> None:
        self.ends[number] = end
        self.done += 1

    def deviations(self) -> list[str]:
        settled(self.names, self.places)
        committed = [number for number, end in self.ends.items() if end is End.COMMITTED]
        expected = [f"{number}:{row}" for number in committed for row in range(ROWS)]
        found = read_committed(self.names.bootstrap, self.places)
        wrong = [
            f"{self.label}: partition {partition}: {_first_difference(expected, values)}"
            for partition, records in found.items()
            if (values := [value for _, value in records]) != expected
        ]
        last = committed[-1] if committed else NOT_COMMITTED
        note = f"transaction {last}" if committed else ""
        offset = committed_offset(self.names.bootstrap, self.group, self.ledger)
        if offset != (last, note):
            wrong.append(f"{self.label}: the group is at {offset}, the log at {(last, note)}")
        return wrong


class Transactions(TransactionalLoad):
    """An async producer: commits, every fourth time aborts, and after every doubt goes on as a new
    producer that first looks what was committed."""

    enough = 5

    def work(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        number, doubtful = 0, False
        while self.goes_on or doubtful:
            try:
                async with self._producer() as producer:
                    await producer.init_transactions()
                    if doubtful:
                        await self._settle(number)
                        number, doubtful = number + 1, False
                    while self.goes_on:
                        doubtful = True
                        self.book(number, await self._transaction(producer, number))
                        number, doubtful = number + 1, False
            except ClientError as error:
                self.seen[type(error).__name__] += 1

    def _producer(self) -> Producer:
        producer = Producer(
            self.names.bootstrap,
            self.patience,
            transactional_id=self.transactional_id,
            linger_ms=0,
        )
        self.strike.watch(producer._driver)

        async def version() -> int:
            return self.version

        producer._cluster.transaction_version = version  # type: ignore[method-assign]  # to have both
        return producer

    async def _transaction(self, producer: Producer, number: int) -> End:
        """Raises when this producer cannot say what became of it."""
        await producer.begin_transaction()
        try:
            for row, (topic, partition) in itertools.product(range(ROWS), self.places):
                await producer.send(topic, f"{number}:{row}".encode(), partition=partition)
            self.strike.at(Moment.SENDING)
            await producer.send_offsets_to_transaction(self.entry(number), self.group)
            if number % 4 == 3:
                await producer.flush()
                await producer.abort_transaction()
                return End.ABORTED
            await producer.commit_transaction()
        except AbortableError as error:
            self.seen[type(error).__name__] += 1
            if producer.state is ProducerState.ABORTABLE_ERROR:
                await producer.abort_transaction()
            return End.ABORTED
        return End.COMMITTED

    async def _settle(self, number: int) -> None:
        """Nothing is open any more: what the group has committed says which of the two it was."""
        async with Admin(self.names.bootstrap) as admin:
            offsets = await admin.committed_offsets(self.group)
        end = End.COMMITTED if offsets.get(self.ledger) == number else End.ABORTED
        self.seen[f"found {end.value}"] += 1
        self.book(number, end)


class Driven(TransactionalLoad):
    """A driver and two worker processes for each transaction, which is done again until it is
    committed: the numbers in the log have no gaps."""

    moments = (Moment.SENDING, Moment.OFFSETS, Moment.COMMITTING)
    enough = 1
    sending_takes_s = 2.0  # processes have to start

    def work(self) -> None:
        while self.goes_on:
            with driver(self.names, self.version, f"{self.label}-id", **self.patience) as finisher:
                self.strike.watch_blocking(finisher)
                try:
                    finisher.init()
                    self._catch_up(finisher)
                    while self.goes_on:
                        self._batch(finisher, len(self.ends))
                except ClientError as error:
                    self.seen[type(error).__name__] += 1
        self._last_doubt()

    def _batch(self, finisher: TransactionClient, number: int) -> None:
        opened = finisher.begin(self.places)
        values = [f"{number}:{row}" for row in range(ROWS)]
        half = PARTITIONS // 2
        workers = [
            start(opened, dict.fromkeys(places, values))
            for places in (self.places[:half], self.places[half:])
        ]
        self.strike.at(Moment.SENDING)
        told = [result(each) for each in workers]
        if refusals := [each for each in told if isinstance(each, str)]:
            self.seen.update(refusals)
            finisher.abort()
            return
        assert [rows for each in told for _, rows, *_ in each] == [ROWS] * PARTITIONS
        finisher.commit_offsets(self.group, self.entry(number))
        try:
            finisher.commit()
        except UnknownOutcome:
            self.seen["in doubt"] += 1
            raise
        self.book(number, End.COMMITTED)

    def _catch_up(self, finisher: TransactionClient) -> None:
        """Books what was committed without an answer."""
        found = finisher.committed_offsets(self.group, [self.ledger])[self.ledger]
        if found is not None and found.offset not in self.ends:
            self.seen["found committed"] += 1
            self.book(found.offset, End.COMMITTED)

    def _last_doubt(self) -> None:
        with driver(self.names, self.version, f"{self.label}-id", **PATIENT) as finisher:
            finisher.init()
            self._catch_up(finisher)


def _first_difference(expected: Sequence[object], found: Sequence[object]) -> str:
    for place, (one, other) in enumerate(itertools.zip_longest(expected, found)):
        if one != other:
            return f"number {place} of {len(expected)} is {other!r} and not {one!r}"
    return "nothing"
