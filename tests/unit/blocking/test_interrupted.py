"""A thread that waits in the blocking client is interrupted, by a signal or otherwise, and the
program goes on: what it has not received is not taken."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from onceflow import blocking
from onceflow.blocking import loop as loop_module
from onceflow.blocking.handover import Handover
from onceflow.blocking.loop import WouldWaitForever
from onceflow.client.errors.consumer import WrongUse
from onceflow.types import TopicPartition
from tests.unit.blocking.interrupting import Interrupted, alarms, interrupt_waits
from tests.unit.blocking.reading_back import visible

NUMBERS = itertools.count()
ROWS = 60
SETTINGS: dict[str, Any] = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 10}
Program = Callable[[blocking.Consumer], list[int]]


@pytest.fixture
def name(bootstrap: str) -> str:
    """Of a topic with rows, of another one, and of a group."""
    made = f"i-{next(NUMBERS)}"
    with blocking.Admin(bootstrap) as admin:
        admin.create_topic(made, partitions=1)
        admin.create_topic(f"{made}-out", partitions=1)
    with blocking.Producer(bootstrap) as producer:
        for number in range(ROWS):
            producer.send(made, b"%d" % number)
    return made


def _poll(consumer: blocking.Consumer) -> list[int]:
    return [record.offset for record in consumer.poll(0.2, max_records=7)]


def _by_partition(consumer: blocking.Consumer) -> list[int]:
    found = consumer.poll_by_partition(0.2, max_records=7)
    return [record.offset for records in found.values() for record in records]


def _table(consumer: blocking.Consumer) -> list[int]:
    table: Any = consumer.poll_table(0.2, max_rows=7)
    return [] if table is None else table.column("offset").to_pylist()


def _one(consumer: blocking.Consumer) -> list[int]:
    return [next(consumer).offset]


def _all_kinds(consumer: blocking.Consumer) -> list[int]:
    return (_poll, _one, _table, _one, _by_partition)[next(NUMBERS) % 5](consumer)


HOW = {
    "poll": _poll,
    "by partition": _by_partition,
    "table": _table,
    "one": _one,
    "all": _all_kinds,
}


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("take", HOW.values(), ids=HOW)
def test_every_row_comes_once_whatever_is_interrupted(
    bootstrap: str, name: str, take: Program, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    with blocking.Consumer(bootstrap, SETTINGS, group_id=name) as consumer:
        consumer.subscribe([name])
        interrupt_waits(monkeypatch, lambda number: number % 3 != 0, answered=answered)
        while len(received) < ROWS:
            with suppress(Interrupted):
                received += take(consumer)
        monkeypatch.undo()
        assert received == [*range(ROWS)]
        assert consumer.position(TopicPartition(name, 0)) == ROWS


@pytest.mark.parametrize("how", ["commit", "close", "position", "rewind", "pause", "lag"])
def test_what_was_not_received_is_not_committed_nor_counted(
    bootstrap: str, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TopicPartition(name, 0)
    settings: dict[str, Any] = {**SETTINGS, "group.id": name}
    with blocking.Consumer(bootstrap, settings) as consumer:
        consumer.subscribe([name])
        received: list[int] = []
        while len(received) < 20:
            received += _poll(consumer)
        interrupt_waits(monkeypatch, lambda number: True, answered=True)
        for take in (_poll, _one, _table):
            with pytest.raises(Interrupted):
                take(consumer)
        monkeypatch.undo()
        if how == "commit":
            consumer.commit()
            assert consumer.committed()[place].offset == len(received)
        elif how == "position":
            assert consumer.position(place) == len(received)
        elif how == "rewind":
            consumer.rewind()
            assert _one(consumer) == [0]
        elif how == "pause":
            consumer.pause([place])
            consumer.resume([place])
            assert _one(consumer) == [len(received)]
            received.append(len(received))
        elif how == "lag":
            assert consumer.lag()[place].records == ROWS - len(received)
    if how in ("close", "commit", "position", "pause", "lag"):  # it has committed by itself
        with blocking.Consumer(bootstrap, settings) as consumer:
            consumer.subscribe([name])
            assert _one(consumer) == [len(received)]


@pytest.mark.parametrize("interval_ms", [0, 50])
@pytest.mark.parametrize("answered", [True, False])
def test_a_session_commits_no_batch_that_was_not_received(
    bootstrap: str, name: str, answered: bool, interval_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    settings: dict[str, Any] = {
        "group_id": name,
        "topics": [name],
        "max_poll_records": 7,
        "fetch_max_wait_ms": 10,
        "commit_interval_ms": interval_ms,
    }
    with blocking.Session(bootstrap, settings) as session:
        numbers = interrupt_waits(monkeypatch, lambda number: number % 2 == 0, answered=answered)
        while len(received) < ROWS - 10:
            try:
                batch, txn = next(session)
            except Interrupted:
                continue
            numbers[0] = 0  # only what is asked for next is interrupted
            for record in batch:
                received.append(record.offset)
                numbers[0] = 0
                txn.send(f"{name}-out", record.value)
        monkeypatch.undo()
        interrupt_waits(monkeypatch, lambda number: True, answered=True)
        with pytest.raises(Interrupted):
            next(session)
        monkeypatch.undo()
    assert received == [*range(len(received))]
    assert visible(bootstrap, f"{name}-out") == [b"%d" % number for number in received]
    with blocking.Session(bootstrap, settings) as session:
        for batch, _ in session:
            assert next(iter(batch)).offset == len(received)
            break


def first_after_an_interruption(bootstrap: str, name: str, patch: pytest.MonkeyPatch) -> int:
    """The offset of a session's first record that anybody has received."""
    settings = {"group_id": name, "topics": [name], "max_poll_records": 7}
    with blocking.Session(bootstrap, settings) as session:
        interrupt_waits(patch, lambda number: True, answered=True)
        with pytest.raises(Interrupted):
            next(session)
        patch.undo()
        batch, _ = next(session)
        return next(iter(batch)).offset


def test_a_batch_that_was_not_received_comes_again(
    bootstrap: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert first_after_an_interruption(bootstrap, name, monkeypatch) == 0


def test_that_finds_a_client_that_takes_nothing_back(
    bootstrap: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as bug:
        bug.setattr(Handover, "_settling", lambda handover: None)
        assert first_after_an_interruption(bootstrap, name, monkeypatch) == 7
        with pytest.raises(AssertionError):
            test_what_was_not_received_is_not_committed_nor_counted(
                bootstrap, name, "commit", monkeypatch
            )


Call = Callable[[blocking.Consumer, TopicPartition], Any]
CALLS: dict[str, Call] = {
    "subscribe": lambda consumer, place: consumer.subscribe([place.topic]),
    "assignment": lambda consumer, place: consumer.assignment,
    "pause": lambda consumer, place: consumer.pause([place]),
    "resume": lambda consumer, place: consumer.resume([place]),
    "seek": lambda consumer, place: consumer.seek(place, 3),
    "seek_to_end": lambda consumer, place: consumer.seek_to_end(),
    "rewind": lambda consumer, place: consumer.rewind(),
    "position": lambda consumer, place: consumer.position(place),
    "lag": lambda consumer, place: consumer.lag(),
    "commit": lambda consumer, place: consumer.commit(),
    "committed": lambda consumer, place: consumer.committed(),
    "unsubscribe": lambda consumer, place: consumer.unsubscribe(),
    "close": lambda consumer, place: consumer.close(),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_other_call_can_be_interrupted(
    bootstrap: str, name: str, call: Call, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the consumer is used on, and what it has committed at its end is what was received."""
    place, received = TopicPartition(name, 0), list[int]()
    before = threading.active_count()
    consumer = blocking.Consumer(bootstrap, SETTINGS, group_id=name)
    with consumer:
        consumer.subscribe([name])
        while len(received) < 10:
            received += _poll(consumer)
        interrupt_waits(monkeypatch, lambda number: True, answered=answered)
        with pytest.raises(Interrupted):
            call(consumer, place)
        monkeypatch.undo()
        if call is not CALLS["close"]:
            consumer.subscribe([name])
            while place not in consumer.assignment:
                consumer.poll(0)
            consumer.seek(place, len(received))
            consumer.resume([place])
            while len(received) < ROWS:
                received += _poll(consumer)
    assert received == [*range(len(received))]
    assert threading.active_count() <= before
    with blocking.Admin(bootstrap) as admin:
        committed = admin.committed_offsets(name).get(place, 0)
    assert committed == ROWS or (call is CALLS["close"] and committed <= len(received))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("answered", [True, False])
def test_a_start_that_is_interrupted_leaves_nothing_behind(
    bootstrap: str, name: str, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.active_count()
    consumer = blocking.Consumer(bootstrap, SETTINGS, group_id=name)
    interrupt_waits(monkeypatch, lambda number: True, answered=answered)
    with pytest.raises(Interrupted):
        consumer.start()
    monkeypatch.undo()
    assert threading.active_count() <= before
    with blocking.Consumer(bootstrap, SETTINGS, group_id=name) as another:
        another.subscribe([name])
        assert _one(another) == [0]


def test_twice_interrupted(bootstrap: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second exception comes before the call could be called off."""
    monkeypatch.setattr(loop_module.Waiting, "call_off", lambda self: None)
    received: list[int] = []
    with blocking.Consumer(bootstrap, SETTINGS, group_id=name) as consumer:
        consumer.subscribe([name])
        interrupt_waits(monkeypatch, lambda number: number % 2 == 0, answered=False)
        while len(received) < ROWS:
            with suppress(Interrupted):
                received += _all_kinds(consumer)
        monkeypatch.undo()
    assert received == [*range(ROWS)]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals_at_any_time(bootstrap: str) -> None:
    """As Ctrl-C that a program catches: all over the code, not only where it waits."""
    name, count = f"i-{next(NUMBERS)}", 300
    with blocking.Admin(bootstrap) as admin:
        admin.create_topic(name, partitions=1)
    with blocking.Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(name, b"%d" % number)
    received: list[int] = []
    interrupted = 0
    with blocking.Consumer(bootstrap, SETTINGS, group_id=name) as consumer:
        consumer.subscribe([name])
        with alarms(0.003) as is_armed:
            while len(received) < count:
                try:
                    is_armed[0] = True
                    for record in consumer:
                        received.append(record.offset)
                        if len(received) >= count:
                            break
                    is_armed[0] = False
                except Interrupted:
                    interrupted += 1
    assert received == [*range(count)]
    assert interrupted > 0


def test_a_listener_that_polls_is_told_and_does_not_wait_for_itself(
    bootstrap: str, name: str
) -> None:
    class Polls(blocking.RebalanceListener):
        def on_partitions_assigned(self, partitions: Any) -> None:
            consumer.poll(1)

    with blocking.Consumer(bootstrap, SETTINGS, group_id=name) as consumer:
        consumer.subscribe([name], Polls())
        with pytest.raises(WouldWaitForever):
            consumer.poll(30)
        assert _one(consumer) == [0]


@pytest.mark.parametrize("word", ["assigned", "revoked"])
def test_a_listener_that_closes_is_told_and_nothing_is_closed(
    bootstrap: str, name: str, word: str
) -> None:
    refusals: list[WrongUse] = []

    class Closes(blocking.RebalanceListener):
        def _hear(self, heard: str) -> None:
            if heard == word:
                with pytest.raises(WrongUse) as refused:
                    consumer.close()
                refusals.append(refused.value)

        def on_partitions_assigned(self, partitions: Any) -> None:
            self._hear("assigned")

        def on_partitions_revoked(self, partitions: Any) -> None:
            self._hear("revoked")

    with blocking.Consumer(bootstrap, SETTINGS, group_id=name) as consumer:
        consumer.subscribe([name], Closes())
        assert _one(consumer) == [0]
        consumer.unsubscribe()
        assert consumer.assignment == frozenset()
    assert len(refusals) == 1
