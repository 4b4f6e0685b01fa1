"""The blocking twin: the same names as the async client, from many threads, and no deadlocks."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from onceflow import blocking
from onceflow.blocking.loop import LoopThread, NotRunning, WouldWaitForever
from onceflow.client.admin import admin
from onceflow.client.consumer import consumer
from onceflow.client.errors.requests import BrokerUnreachable, CrossedFork, FatalProducerError
from onceflow.client.producer import producer, transaction
from onceflow.client.producer.receipts import Receipt
from onceflow.client.session import session, transaction as session_transaction
from onceflow.client.transactions.states import ProducerState, WrongState
from onceflow.types import TopicPartition
from tests.unit.blocking.reading_back import visible

NUMBERS = itertools.count()


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"topic-{next(NUMBERS)}"
    with blocking.Admin(bootstrap) as made:
        made.create_topic(name, partitions=1)
    return name


def public_names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("twin", "original"),
    [
        (blocking.Producer, producer.Producer),
        (blocking.Transaction, transaction.Transaction),
        (blocking.Consumer, consumer.Consumer),
        (blocking.Admin, admin.Admin),
        (blocking.Session, session.Session),
        (blocking.SessionTransaction, session_transaction.SessionTransaction),
    ],
)
def test_the_same_names_with_the_same_parameters(twin: type, original: type) -> None:
    own = {"start", "close", *({"measured"} if twin is blocking.Producer else ())}
    if twin is blocking.SessionTransaction:  # which the session begins and ends
        own = set()
    assert public_names(original) | own == public_names(twin)
    for name in public_names(original) - own:
        mine, theirs = getattr(twin, name), getattr(original, name)
        if inspect.iscoroutinefunction(theirs):
            assert not inspect.iscoroutinefunction(mine)
            assert inspect.signature(mine) == inspect.signature(theirs)
            assert mine.__doc__ == theirs.__doc__


def test_records_are_where_receipts_say(bootstrap: str, topic: str) -> None:
    with blocking.Producer(bootstrap, linger_ms=0) as sender:
        receipts = [sender.send(topic, b"%d" % number) for number in range(10)]
        assert [each.result(10).offset for each in receipts] == list(range(10))
        rows = sender.send_table(topic, pa.table({"value": [b"10", b"11"]})).result()
        assert [(each.first_offset, each.last_offset) for each in rows] == [(10, 11)]
        assert sender.partitions_for(topic) == 1
    assert visible(bootstrap, topic) == [b"%d" % number for number in range(12)]


def test_receipts_are_good_after_the_block(bootstrap: str, topic: str) -> None:
    with blocking.Producer(bootstrap) as sender:
        receipts = [sender.send(topic, b"%d" % number) for number in range(3)]
        rows = sender.send_table(topic, pa.table({"value": [b"3"]}))
    assert [each.result().offset for each in receipts] == [0, 1, 2]
    assert [each.first_offset for each in rows.result()] == [3]


def test_that_finds_one_that_asks_a_closed_client(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Receipt, "is_done", False)
    with pytest.raises(NotRunning):
        test_receipts_are_good_after_the_block(bootstrap, topic)


def test_many_threads_use_one(bootstrap: str, topic: str) -> None:
    with blocking.Producer(bootstrap) as sender, ThreadPoolExecutor(8) as pool:

        def work(thread: int) -> None:
            for number in range(200):
                sender.send(topic, b"%d %d" % (thread, number))

        list(pool.map(work, range(8)))
        sender.flush()
    found = [tuple(map(int, value.split())) for value in visible(bootstrap, topic)]
    assert len(found) == 1600
    for thread in range(8):
        assert [number for one, number in found if one == thread] == list(range(200))


def sell_and_fail(sender: blocking.Producer, topic: str) -> None:
    with sender.transaction() as opened:
        opened.send(topic, b"b")
        raise KeyError


def test_transactions(bootstrap: str, topic: str) -> None:
    place = TopicPartition(topic, 0)
    with blocking.Producer(bootstrap, {"transactional.id": f"{topic}-id"}) as sender:
        with sender.transaction() as opened:
            opened.send(topic, b"a")
            opened.send_offsets({place: 7}, f"{topic}-group")
        with pytest.raises(KeyError):
            sell_and_fail(sender, topic)
        sender.begin_transaction()
        sender.send(topic, b"c")
        sender.commit_transaction()
        assert sender.state is ProducerState.READY
    assert visible(bootstrap, topic) == [b"a", b"c"]
    with blocking.Admin(bootstrap) as asked:
        assert asked.committed_offsets(f"{topic}-group") == {place: 7}


def test_errors_come_out_as_they_are(bootstrap: str) -> None:
    with pytest.raises(BrokerUnreachable), blocking.Admin("127.0.0.1:1", request_timeout_ms=500):
        pass
    with (
        blocking.Producer(bootstrap) as sender,
        pytest.raises(WrongState, match=r"transactional\.id"),
    ):
        sender.begin_transaction()
    with pytest.raises(NotRunning):
        sender.flush()
    sender.close()


def test_threads_end_with_their_clients(bootstrap: str) -> None:
    before = set(threading.enumerate())
    with blocking.Producer(bootstrap):
        (mine,) = set(threading.enumerate()) - before
        assert mine.name == "onceflow producer"
    assert set(threading.enumerate()) <= before


def test_a_result_that_takes_too_long_is_given_up() -> None:
    loop = LoopThread("test")
    loop.start()
    cancelled = threading.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        loop.run(never(), 0.01)
    assert cancelled.wait(10)
    loop.stop()


def test_the_clients_own_thread_does_not_wait_for_itself() -> None:
    loop = LoopThread("test")
    loop.start()

    async def nothing() -> None: ...

    with pytest.raises(WouldWaitForever):
        loop.call(lambda: loop.run(nothing()))
    loop.stop()


def test_a_fork_has_to_make_its_own(bootstrap: str) -> None:
    with blocking.Admin(bootstrap) as made:
        made._loop._pid = os.getpid() + 1
        with pytest.raises(CrossedFork):
            made.list_topics()
        made._loop._pid = os.getpid()
        assert isinstance(made.list_topics(), list)


class Heard(blocking.RebalanceListener):
    """Commits in its callback, as listeners do."""

    def __init__(self, reader: blocking.Consumer) -> None:
        self.reader = reader
        self.events: list[tuple[str, int]] = []

    def on_partitions_assigned(self, partitions: Any) -> None:
        self.events.append(("assigned", len(partitions)))

    def on_partitions_revoked(self, partitions: Any) -> None:
        self.events.append(("revoked", len(partitions)))
        self.reader.commit()


def test_a_consumer_and_its_listener(bootstrap: str, topic: str) -> None:
    place = TopicPartition(topic, 0)
    with blocking.Producer(bootstrap) as sender:
        for number in range(10):
            sender.send(topic, b"%d" % number)
    group = {"group_id": f"{topic}-group", "auto_offset_reset": "earliest"}
    with blocking.Consumer(bootstrap, group, enable_auto_commit=False) as reader:
        heard = Heard(reader)
        reader.subscribe([topic], heard)
        found = [next(reader).value for _ in range(4)]
        assert reader.assignment == {place}
        assert reader.position(place) == 4
        reader.unsubscribe()
        assert heard.events == [("assigned", 1), ("revoked", 1)]
    with blocking.Consumer(bootstrap, group) as reader:
        reader.subscribe([topic])
        for record in reader:
            found.append(record.value)
            if len(found) == 10:
                break
    assert found == [b"%d" % number for number in range(10)]


def test_threads_poll_in_turn(bootstrap: str, topic: str) -> None:
    with blocking.Producer(bootstrap) as sender:
        for number in range(400):
            sender.send(topic, b"%d" % number)
    with blocking.Consumer(bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([topic])

        def work(_: int) -> list[bytes | None]:
            return [record.value for _ in range(10) for record in reader.poll(10, max_records=10)]

        with ThreadPoolExecutor(4) as pool:
            found = [value for part in pool.map(work, range(4)) for value in part]
    assert sorted(found, key=lambda value: int(value or 0)) == [b"%d" % n for n in range(400)]


def test_an_alarm_that_rings_at_once_can_be_set_again(bootstrap: str, monkeypatch: Any) -> None:
    """The loop's own timers are no timers, and know no time, when they are due at once."""
    with blocking.Producer(bootstrap) as sender:
        inner = sender._client._sender
        assert inner is not None
        monkeypatch.setattr(inner._accumulator, "next_deadline", lambda now: now + 0.0001)

        def set_twice() -> None:
            now = inner._clock.monotonic()
            inner._set_alarm(now)
            inner._set_alarm(now)

        sender._loop.call(set_twice)


def test_a_producer_that_has_failed_leaves_no_connection_open(bootstrap: str) -> None:
    sender = blocking.Producer(bootstrap)
    sender.start()
    inner = sender._client._sender
    assert inner is not None
    inner.failure = FatalProducerError("on purpose")
    connections = list(sender._client._cluster._pool._connections.values())
    with pytest.raises(FatalProducerError, match="on purpose"):
        sender.close()
    assert connections
    assert not any(each.is_open for each in connections)
