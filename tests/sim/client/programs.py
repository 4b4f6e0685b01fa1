"""Programs that use the client as their authors would: producers without transactions, readers.

Each notes what it asked for and what it was told. What is to be done about an error is what the
client's documentation says: nothing is sent twice by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from onceflow.client.address import BrokerAddress
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.errors.requests import ClientError, FatalProducerError
from onceflow.client.net.cluster import Cluster
from onceflow.client.producer.producer import Producer
from onceflow.client.producer.receipts import Receipt, TableReceipt
from onceflow.client.settings.consumer import FetcherSettings
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.sim.client.history import Delivery, History, Outcome, ReadBy, Sent, Used
from tests.sim.client.proxy import Client, Proxy
from tests.sim.txn.history import Place, PromiseBroken

T = TypeVar("T")

ADDRESS: Final = BrokerAddress("broker", 9092)
PLACES: Final = (Place("a", 0), Place("a", 1), Place("b", 0))
DELIVERY_TIMEOUT_MS: Final = 4_000
TRANSACTION_TIMEOUT_MS: Final = 6_000
LONGEST_CALL_S: Final = 60.0
"""No call of the client, whatever the network does, may take longer."""
IMPATIENT: Final[dict[str, Any]] = {
    "request_timeout_ms": 1_000,
    "socket_connection_setup_timeout_ms": 1_000,
    "default_api_timeout_ms": 5_000,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 300,
}
PRODUCING: Final[dict[str, Any]] = {
    **IMPATIENT,
    "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
    "max_block_ms": 5_000,
    "batch_size": 200,
    "linger_ms": 2,
}


class Hangs(PromiseBroken):
    """A call of the client does not come back."""


class Program:
    """Who runs where, and in whose name it notes what it was told."""

    def __init__(self, world: World, history: History, proxy: Proxy, name: str) -> None:
        self.world = world
        self.history = history
        self.name = name
        self.rand = world.rand.fork(name)
        self.doing = "nothing"
        self._proxy = proxy
        self._records = 0
        self._watched: dict[Used, list[asyncio.Task[ClientError | None]]] = {}

    async def limited(self, doing: str, call: Awaitable[T]) -> T:
        """The result of a call of the client; names who waits for what if it hangs."""
        self.doing = doing
        try:
            async with asyncio.timeout(LONGEST_CALL_S):
                return await call
        except TimeoutError:
            raise Hangs(
                f"{self.name} waits for {doing}, at {self.world.loop.time():.3f} s"
            ) from None
        finally:
            self.doing = f"nothing (the last was {doing})"

    async def pause(self, longest_s: float) -> None:
        await asyncio.sleep(self.rand.uniform(0.0, longest_s))

    def chance(self, one_in: int) -> bool:
        return self.rand.randrange(one_in) == 0

    # --- receipts ---------------------------------------------------------------------------------

    def watch(self, used: Used, settling: Coroutine[Any, Any, ClientError | None]) -> None:
        """Lets it note what it is told while the program goes on."""
        self._watched.setdefault(used, []).append(self.world.loop.create_task(settling))

    async def all_told(self, used: Used) -> list[ClientError]:
        """Returns when everything that was sent has an outcome; the errors among them."""
        watched = self._watched.pop(used, [])
        return [error for error in await asyncio.gather(*watched) if error is not None]

    def forget(self, used: Used) -> None:
        """Nobody is there any more to be told."""
        for task in self._watched.pop(used, []):
            task.cancel()

    # --- producers --------------------------------------------------------------------------------

    async def started(self, used: Used, kind: Callable[..., Producer], **settings: Any) -> Producer:
        """A producer that has reached the cluster, on a host of its own."""
        self._proxy.clients[used.name] = Client(used.transactional_id, used.generation)
        self.history.producers.append(used)
        while True:
            made = kind(
                str(ADDRESS),
                net=self.world.net.host(used.name),
                clock=self.world.clock,
                rand=self.rand.fork(used.name),
                **PRODUCING,
                **settings,
            )
            try:
                await self.limited("start", made.start())
            except ClientError:
                await self.pause(0.3)
            else:
                return made

    def record(self, used: Used, place: Place, size: int) -> Sent:
        """One that nobody has sent before; noted before it is sent."""
        self._records += 1
        value = b"%s/%d/%s" % (used.name.encode(), self._records, b"." * size)
        sent = Sent(place, value, self.history.tick())
        used.records.append(sent)
        return sent

    async def send(self, producer: Producer, sent: Sent) -> Receipt:
        place = sent.place
        sending = producer.send(place.topic, sent.value, partition=place.partition)
        try:
            return await self.limited("send", sending)
        except ClientError:
            sent.outcome = Outcome.NOT_APPLIED  # it was not even gathered
            raise

    async def send_table(self, producer: Producer, rows: Sequence[Sent]) -> TableReceipt:
        """All rows are for one partition."""
        place = rows[0].place
        table = pa.table({"value": pa.array([each.value for each in rows], pa.binary())})
        sending = producer.send_table(place.topic, table, partition=place.partition)
        try:
            return await self.limited("send_table", sending)
        except ClientError:
            for each in rows:
                each.outcome = Outcome.NOT_APPLIED
            raise

    async def settle(self, sent: Sent, receipt: Receipt) -> ClientError | None:
        """What the receipt says, noted; the error if it says one."""
        try:
            delivery = await self.limited("a receipt", receipt)
        except ClientError as error:
            sent.outcome = told(error)
            return error
        sent.outcome, sent.offset = Outcome.ACKED, delivery.offset
        return None

    async def settle_table(self, rows: Sequence[Sent], receipt: TableReceipt) -> ClientError | None:
        try:
            (placed,) = await self.limited("the receipt of a table", receipt)
        except ClientError as error:
            # Of several batches only one has its say: of the others nothing is known.
            for each in rows:
                each.outcome = Outcome.UNKNOWN
            return error
        are_together = placed.last_offset - placed.first_offset == len(rows) - 1
        for number, each in enumerate(rows):
            each.outcome = Outcome.ACKED
            each.offset = placed.first_offset + number if are_together else -1
        return None


def told(error: ClientError) -> Outcome:
    return Outcome.UNKNOWN if error.outcome == "unknown" else Outcome.NOT_APPLIED


class Plain(Program):
    """Sends bursts of records without transactions."""

    async def run(self, bursts: int) -> None:
        used = Used(self.name)
        producer = await self.started(used, Producer)
        for _ in range(bursts):
            await self.burst(producer, used)
            await self.pause(0.4)
        self._producer, self._used = producer, used

    async def burst(self, producer: Producer, used: Used) -> list[Sent]:
        sent: list[Sent] = []
        for _ in range(1 + self.rand.randrange(8)):
            place = PLACES[self.rand.randrange(len(PLACES))]
            count = 1 + self.rand.randrange(4) if self.chance(5) else 1
            rows = [self.record(used, place, self.rand.randrange(150)) for _ in range(count)]
            sent += rows
            try:
                if count > 1:
                    self.watch(used, self.settle_table(rows, await self.send_table(producer, rows)))
                else:
                    self.watch(used, self.settle(rows[0], await self.send(producer, rows[0])))
            except ClientError:
                self.history.count("not gathered")
            if self.chance(3):
                await self.pause(0.01)
        for error in await self.all_told(used):
            if isinstance(error, FatalProducerError):
                self.history.complaints.append(f"{self.name}: {error}")
        return sent

    async def finish(self) -> None:
        """Nothing is in the way any more: all of this is acknowledged."""
        self.history.final += await self.burst(self._producer, self._used)
        await self.limited("close", self._producer.close())


class Reader(Program):
    """Reads all partitions from their beginnings, until it is told how far."""

    def __init__(
        self, world: World, history: History, proxy: Proxy, name: str, *, read_committed: bool
    ) -> None:
        super().__init__(world, history, proxy, name)
        self.read = ReadBy(name, read_committed)
        history.readers.append(self.read)
        settings = FetcherSettings.of(
            isolation_level="read_committed" if read_committed else "read_uncommitted",
            max_partition_fetch_bytes=400,
            fetch_queued_max_bytes=3000,
            **IMPATIENT,
        )
        self._cluster = Cluster(
            [ADDRESS], settings.cluster(), net=world.net.host(name), rand=self.rand.fork("cluster")
        )
        self._fetcher = Fetcher(self._cluster, settings, rand=self.rand.fork("fetcher"))
        self._fetcher.assign({TopicPartition(*place): 0 for place in PLACES})

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            most = 1 + self.rand.randrange(40)
            try:
                records = await self.limited(
                    "records", self._fetcher.next_records(2, max_records=most)
                )
            except ClientError:
                self.read.errors += 1
                await self.pause(0.3)
                continue
            at = self.history.tick()
            for each in records:
                place = Place(each.topic, each.partition)
                self.read.deliveries.append(Delivery(at, place, each.offset, each.value or b""))

    def is_at(self, ends: dict[Place, int]) -> bool:
        """Whether it has come to the ends of the partitions."""
        return all(
            (self._fetcher.position(TopicPartition(*place)) or 0) >= end
            for place, end in ends.items()
        )

    async def close(self) -> None:
        await self._fetcher.close()
        self._cluster.close()
