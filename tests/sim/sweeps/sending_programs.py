"""Programs that send, as somebody would write them who has read what is promised to a caller that
is cancelled (docs/CLIENT.md); each knows what has to be in the log in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from onceflow.client.address import BrokerAddress
from onceflow.client.admin.admin import Admin
from onceflow.client.admin.transactions import TransactionNotFound
from onceflow.client.consumer.ranges import read_range
from onceflow.client.errors.requests import (
    AbortableError,
    BrokerError,
    ClientError,
    GroupNotFound,
    TopicNotFound,
    UnknownOutcome,
)
from onceflow.client.net.cluster import Cluster
from onceflow.client.offsets import offset_ranges
from onceflow.client.producer.producer import Producer
from onceflow.client.producer.receipts import Receipt
from onceflow.client.session.batch import Batch
from onceflow.client.session.session import Session
from onceflow.client.session.transaction import SessionTransaction
from onceflow.client.transactions.states import ProducerState
from onceflow.types import TopicPartition
from tests.sim.sweeps.sending import HOST, Program, Stage
from tests.sim.txn.history import PromiseBroken

T = TypeVar("T")
ADDRESS: Final = "broker:9092"
PATIENCE: Final[dict[str, Any]] = {
    "request_timeout_ms": 3_000,
    "delivery_timeout_ms": 30_000,
    "transaction_timeout_ms": 15_000,
}
TOPICS: Final = {"a": 2, "b": 1, "in": 2}
PLACES: Final = [TopicPartition(name, each) for name in ("a", "b") for each in range(TOPICS[name])]


class Sender:
    """What programs have in common."""

    def __init__(self, stage: Stage) -> None:
        self.world = stage.world
        self.waits = stage.waits

    def producer(self, **named: Any) -> Producer:
        """None leaves a setting as it is by itself."""
        settings = {name: it for name, it in {**PATIENCE, **named}.items() if it is not None}
        return Producer(
            ADDRESS,
            {},
            net=self.world.net.host(HOST),
            clock=self.world.clock,
            rand=self.world.rand.fork(HOST),
            **settings,
        )

    def admin(self, host: str = "judge") -> Admin:
        clock, rand = self.world.clock, self.world.rand.fork(host)
        return Admin(ADDRESS, net=self.world.net.host(host), clock=clock, rand=rand)

    async def make_topics(self) -> None:
        async with self.admin() as admin:
            for name, partitions in TOPICS.items():
                await admin.create_topic(name, partitions=partitions)

    async def until_done(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        """Called again if it was cancelled."""
        is_done, found = await self.waits.call(name, make())
        return found if is_done else await make()

    async def start(self, make: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """As a supervisor would."""
        while True:
            try:
                await self.until_done("start", make)
            except ClientError:
                await asyncio.sleep(1)
            else:
                return

    async def committed(self) -> dict[str, list[bytes]]:
        """What readers see, by topic, when nothing is open any more."""
        await asyncio.sleep(PATIENCE["transaction_timeout_ms"] / 1000 + 15)
        found: dict[str, list[bytes]] = {"a": [], "b": []}
        net = self.world.net.host("judge")
        async with Cluster([BrokerAddress("broker", 9092)], net=net) as cluster:
            ends = await offset_ranges(cluster, PLACES, read_committed=True)
            for place in PLACES:
                first, last = ends[place].earliest, ends[place].latest
                async for table in read_range(cluster, place, first, last):
                    found[place.topic] += [
                        each or b"" for each in table.column("value").to_pylist()
                    ]
        return found

    async def offset_of(self, group: str) -> int:
        async with self.admin() as admin:
            return sum((await admin.committed_offsets(group)).values())


def check(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise PromiseBroken(f"{what}: {found}, not {expected}")


# --- transactions, call by call -------------------------------------------------------------------


class Transactions(Sender):
    """Committed, aborted, committed; what is cut short is called again."""

    async def run(self) -> None:
        await self.make_topics()
        self.ours = ours = self.producer(transactional_id="id", linger_ms=2)
        await self.start(ours.start)
        await self.until_done("init_transactions", ours.init_transactions)
        for number, end in enumerate(("commit", "abort", "commit")):
            while not await self.transaction(number, end):
                pass
        await self.until_done("close", ours.close)
        found = await self.committed()
        for topic, count in (("a", 3), ("b", 2)):
            rows = sorted(b"%d %d" % (number, row) for number in (0, 2) for row in range(count))
            check(sorted(found[topic]), rows, f"rows of {topic!r}")
        check(await self.offset_of("group"), 1, "the offset")

    async def transaction(self, number: int, end: str) -> bool:
        """False: it had to be aborted, and is done again."""
        ours = self.ours
        await self.until_done("begin_transaction", self.begin)
        try:
            for row in range(3):
                value = b"%d %d" % (number, row)
                await self.until_done("send", partial(ours.send, "a", value))
            rows = pa.table({"value": [b"%d %d" % (number, row) for row in range(2)]})
            await self.until_done("send_table", lambda: ours.send_table("b", rows))
            if number == 1:
                await self.until_done("flush", ours.flush)
            if number < 2:  # else nothing was sent yet when it ends
                offsets = {TopicPartition("in", 0): number + 1}
                await self.until_done(
                    "send_offsets", lambda: ours.send_offsets_to_transaction(offsets, "group")
                )
            await self.end(end, self.commit if end == "commit" else ours.abort_transaction)
        except AbortableError:
            await ours.abort_transaction()
            return False
        return True

    async def end(self, name: str, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """If it is cut short it goes on by itself; called again, it says how that ended."""
        is_done, _ = await self.waits.call(name, make())
        if not is_done:
            await asyncio.sleep(5)
            check(self.ours.state, ProducerState.READY, f"the producer after a {name} that was cut")
            await make()

    async def begin(self) -> None:
        if self.ours.state is not ProducerState.IN_TRANSACTION:
            await self.ours.begin_transaction()

    async def commit(self) -> None:
        """Asks again as often as it takes."""
        while True:
            try:
                return await self.ours.commit_transaction()
            except UnknownOutcome:
                await asyncio.sleep(1)


class Blocks(Sender):
    """Blocks that may be left at any moment: each is whole, and the next one works."""

    async def run(self) -> None:
        await self.make_topics()
        ours = self.producer(transactional_id="id", linger_ms=2)
        await self.start(ours.start)
        done: list[int] = []
        cut: list[int] = []
        for number in range(3):
            try:
                is_done, _ = await self.waits.call("block", self.block(ours, number))
            except AbortableError:
                continue  # nothing of it is there
            except UnknownOutcome:
                cut.append(number)
                await self.resolve(ours)
                continue
            (done if is_done else cut).append(number)
        await self.until_done("close", ours.close)
        found = await self.committed()
        numbers = {int(each.split()[0]) for each in found["a"]}
        for topic, count in (("a", 3), ("b", 2)):
            rows = sorted(b"%d %d" % (number, row) for number in numbers for row in range(count))
            check(sorted(found[topic]), rows, f"rows of {topic!r}")
        if not set(done) <= numbers <= {*done, *cut}:
            raise PromiseBroken(f"blocks {done} were done, {cut} were cut, {numbers} are there")

    async def block(self, ours: Producer, number: int) -> None:
        async with ours.transaction() as transaction:
            for row in range(3):
                await transaction.send("a", b"%d %d" % (number, row))
            rows = pa.table({"value": [b"%d %d" % (number, row) for row in range(2)]})
            await transaction.send_table("b", rows)
            if number == 1:
                await transaction.send_offsets({TopicPartition("in", 0): 1}, "group")

    async def resolve(self, ours: Producer) -> None:
        while ours.state is ProducerState.UNCLEAR_COMMIT:
            try:
                await ours.commit_transaction()
            except ClientError:
                await asyncio.sleep(1)


class TwoPhases(Sender):
    """Transactions that others write in, and that are prepared; whoever decides has stored the name
    of each, and completes it until that is done, also after the producer has begun anew."""

    async def run(self) -> None:
        await self.make_topics()
        settings: dict[str, Any] = {"transaction_two_phase_commit_enable": True}
        settings["transaction_timeout_ms"] = None  # a prepared transaction has none
        self.ours = self.producer(transactional_id="id", linger_ms=2, **settings)
        await self.start(self.ours.start)
        await self.until_done("init_transactions", self._init)
        for number, is_kept in enumerate((True, False, True)):
            name = await self._prepared(number)
            if number == 2:
                await self.until_done("close", self.ours.close)
                await self.start(self.ours.start)
                await self.until_done("init_transactions", self._init)
                check(str(self.ours.prepared), name, "what is prepared")
            decided = name if is_kept else "0:0"
            await self._complete(decided)
        await self.until_done("close", self.ours.close)
        found = await self.committed()
        rows = sorted(b"%d %d" % (number, row) for number in (0, 2) for row in range(3))
        for topic in ("a", "b"):
            check(sorted(found[topic]), rows, f"rows of {topic!r}")

    async def _init(self) -> None:
        await self.ours.init_transactions(keep_prepared=True)

    async def _prepared(self, number: int) -> str:
        """Its name. What cannot be prepared is aborted, and done again."""
        while True:
            try:
                await self._write(number)
                return str(await self.until_done("prepare", self.ours.prepare_transaction))
            except AbortableError:
                await self.ours.abort_transaction()

    async def _write(self, number: int) -> None:
        ours = self.ours
        if ours.state is not ProducerState.IN_TRANSACTION:
            await ours.begin_transaction()
        await self.until_done("send", partial(ours.send, "a", b"%d 0" % number, partition=0))
        others = [TopicPartition("in", 0)]
        await self.until_done("open_transaction", lambda: ours.open_transaction(others))
        for row in range(3):
            for topic in ("a", "b") if row else ("b",):
                value = b"%d %d" % (number, row)
                await self.until_done("send", partial(ours.send, topic, value, partition=0))

    async def _complete(self, name: str) -> None:
        while True:
            try:
                await self.until_done("complete", lambda: self.ours.complete_transaction(name))
            except (AbortableError, UnknownOutcome):
                await asyncio.sleep(1)
            else:
                return


# --- records without transactions -----------------------------------------------------------------


class Records(Sender):
    """An idempotent producer; what was sent is there once, what was cut short is not."""

    async def run(self) -> None:
        await self.make_topics()
        ours = self.producer(linger_ms=2, batch_size=200, max_request_size=300, buffer_memory=600)
        await self.start(ours.start)
        receipts: list[Receipt] = []
        sent: list[bytes] = []
        for row in range(12):
            value = b"%d" % row + bytes(60)
            is_done, receipt = await self.waits.call("send", ours.send("b", value))
            if is_done and receipt is not None:
                sent.append(value)
                receipts.append(receipt)
            if receipts:
                await self.waits.call("receipt", _outcome(receipts[0]))
        await self.until_done("flush", ours.flush)
        await self.until_done("partitions_for", lambda: ours.partitions_for("a"))
        last = await ours.send("b", b"last")
        is_closed, _ = await self.waits.call("close", ours.close())
        if is_closed:
            await last
            sent.append(b"last")
        await asyncio.wait_for(_settled(last), 1)
        for receipt in receipts:
            await receipt
        found = (await self.committed())["b"]
        check(found[: len(sent)], sent, "records in order")
        # Of a producer that was closed in haste nobody promises that the last one is not there.
        check(found[len(sent) :] in ([], [b"last"]), True, f"the end of {found}")


async def _outcome(receipt: Receipt) -> object:
    return await receipt


async def _settled(receipt: Receipt) -> None:
    try:
        await receipt
    except ClientError:
        return


# --- sessions -------------------------------------------------------------------------------------


class Copying(Sender):
    """A session that copies two partitions; when it ends another one goes on."""

    settings: dict[str, Any] = {}  # noqa: RUF012  # read only

    async def run(self) -> None:
        await self.make_topics()
        await self.fill()
        is_done = False
        while not is_done:
            try:
                is_done = await self.session()
            except ClientError:
                await asyncio.sleep(1)  # as a supervisor would
        found = await self.committed()
        rows = sorted(b"%d" % row for row in range(12))
        for topic in ("a", "b"):
            check(sorted(found[topic]), rows, f"rows of {topic!r}")
        check(await self.offset_of("copying"), 12, "the offset")

    async def fill(self) -> None:
        net = self.world.net.host("judge")
        async with Producer(ADDRESS, net=net, clock=self.world.clock) as producer:
            for row in range(12):
                await producer.send("in", b"%d" % row, partition=row % 2)

    async def session(self) -> bool:
        """Whether all was read."""
        session = Session(
            ADDRESS,
            net=self.world.net.host(HOST),
            clock=self.world.clock,
            rand=self.world.rand.fork(HOST),
            group_id="copying",
            topics=["in"],
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            max_poll_records=3,
            **PATIENCE,
            **self.settings,
        )
        is_started, _ = await self.waits.call("start", session.start())
        if not is_started:
            await session.close(commit=False)
            return False
        try:
            while await self.offset_of("copying") < 12:
                await self.batch(session)
        except BaseException:
            await session.close(commit=False)
            raise
        await self.waits.call("close", session.close())
        return True

    async def batch(self, session: Session) -> None:
        """One, if it comes within a while."""
        try:
            async with asyncio.timeout(5):
                is_done, given = await self.waits.call("next", session.__anext__())
        except TimeoutError:
            return
        if not is_done or given is None:
            return
        batch, txn = given
        await self.work(session, batch, txn)

    async def work(self, session: Session, batch: Batch, txn: SessionTransaction) -> None:
        for record in batch:
            for topic in ("a", "b"):
                await self.until_done("send", partial(txn.send, topic, record.value))


class Sharing(Copying):
    """The same with transactions that are shared by several batches."""

    settings: dict[str, Any] = {"commit_interval_ms": 700}  # noqa: RUF012  # read only


class Letters(Copying):
    """The same with tables, dead letters and offsets of another group; and it asks for its lag."""

    settings: dict[str, Any] = {"dead_letter_topic": "b"}  # noqa: RUF012  # read only

    async def work(self, session: Session, batch: Batch, txn: SessionTransaction) -> None:
        rows = pa.table({"value": [record.value for record in batch]})
        await self.until_done("send_table", lambda: txn.send_table("a", rows))
        for record in batch:
            await self.until_done("dead_letter", partial(txn.dead_letter, record, "as told"))
        offsets = {TopicPartition("in", 0): record.offset}
        await self.until_done("send_offsets", lambda: txn.send_offsets(offsets, "another"))
        await self.until_done("lag", session.lag)


# --- administration -------------------------------------------------------------------------------


class Administration(Sender):
    """What is cut short is called again, and is done or was."""

    async def run(self) -> None:
        admin = self.admin(HOST)
        await self.start(admin.__aenter__)
        await self.do(lambda: admin.create_topic("a", partitions=2))
        await self.do(lambda: admin.create_topic("b", partitions=1))
        await self.do(lambda: admin.create_topic("in", partitions=1))
        await self.do(lambda: admin.add_partitions("in", 2))
        await self.do(admin.list_topics)
        await self.do(lambda: admin.describe_topic("a"))
        kept = {"retention.ms": "86400000"}
        await self.do(lambda: admin.alter_configs("a", changes=kept))
        await self.do(lambda: admin.topic_configs("a"))
        await self.do(admin.broker_configs)
        await self.do(lambda: admin.commit_offsets("group", {TopicPartition("in", 0): 5}))
        await self.do(lambda: admin.committed_offsets("group"))
        await self._records(admin)
        await self._groups(admin)
        await self._transactions(admin)
        await self.do(lambda: admin.delete_topic("b"))
        topics = [each.name for each in await admin.list_topics() if not each.is_internal]
        check(sorted(topics), ["a", "in"], "topics")
        check(await self.offset_of("group"), 5, "the offset")
        await admin.__aexit__(None, None, None)

    async def _records(self, admin: Admin) -> None:
        place = TopicPartition("in", 0)
        await self.do(lambda: admin.list_offsets({place: -1}))
        await self.do(lambda: admin.offset_ranges([place]))
        await self.do(lambda: admin.offsets_at([place], 0))
        await self.do(lambda: admin.delete_records({place: 0}))

    async def _groups(self, admin: Admin) -> None:
        place = TopicPartition("in", 0)
        await self.do(admin.list_groups)
        await self.do(lambda: admin.describe_group("group"))
        await self.do(lambda: admin.lag_behind({place: 0}))
        await self.do(lambda: admin.commit_offsets("gone", {place: 0}))
        await self.do(lambda: admin.delete_group("gone"))

    async def _transactions(self, admin: Admin) -> None:
        """One hangs, and is ended by hand."""
        net, place = self.world.net.host("judge"), TopicPartition("a", 0)
        hanging = Producer(ADDRESS, net=net, clock=self.world.clock, transactional_id="hangs")
        async with hanging:
            await hanging.init_transactions()
            await hanging.begin_transaction()
            await (await hanging.send("a", b"never seen", partition=0))
            await self.do(admin.list_transactions)
            await self.do(lambda: admin.describe_transaction("hangs"))
            await self.do(lambda: admin.describe_producers([place]))
            await self.do(admin.open_transactions)
            await self.do(admin.find_hanging_transactions)
            await self.do(lambda: admin.abort_open_transaction(place, 0))
        check(await admin.open_transactions([place]), [], "what is open")

    async def do(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        for attempt in range(6):
            try:
                await self.until_done("a call", make)
                return
            except (BrokerError, GroupNotFound, TopicNotFound, TransactionNotFound):
                if attempt:
                    return  # it was done the first time
            except ClientError:
                await asyncio.sleep(1)
        raise PromiseBroken("a call is never done")


def _program(kind: type[Sender]) -> Program:
    async def program(stage: Stage) -> None:
        await kind(stage).run()  # type: ignore[attr-defined]

    return program


PROGRAMS: Final[dict[str, Program]] = {
    "transactions": _program(Transactions),
    "blocks": _program(Blocks),
    "two phases": _program(TwoPhases),
    "records": _program(Records),
    "copying": _program(Copying),
    "sharing": _program(Sharing),
    "letters": _program(Letters),
    "administration": _program(Administration),
}
