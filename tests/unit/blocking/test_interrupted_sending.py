"""A thread that sends with the blocking client is interrupted in any of its waits, and the program
goes on: transactions are whole, none stays open, and what is done again is done once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from operator import eq
from typing import Any

import pyarrow as pa
import pytest

from onceflow import blocking
from onceflow.blocking.handover import OutstandingCalls
from onceflow.client.errors.requests import ClientError
from onceflow.client.transactions.states import ProducerState
from onceflow.types import TopicPartition
from tests.unit.blocking.interrupting import Interrupted, alarms, interrupt_waits
from tests.unit.blocking.reading_back import visible

NUMBERS = itertools.count()
ROUNDS = 3
MOST_WAITS = 200
LITTLE: dict[str, Any] = {"linger_ms": 0}

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.fixture
def topic(bootstrap: str) -> str:
    made = f"s-{next(NUMBERS)}"
    with blocking.Admin(bootstrap) as admin:
        admin.create_topic(made, partitions=1)
        admin.create_topic(f"{made}-out", partitions=1)
    return made


class Rows:
    """What a run has sent, in rounds that are to be there whole or not at all."""

    def __init__(self, topic: str, run: int) -> None:
        self.topic = topic
        self.run = run
        self.place = TopicPartition(topic, 0)
        self.done: set[int] = set()
        self.cut: set[int] = set()

    def value(self, number: int, row: int) -> bytes:
        return b"%d %d %d" % (self.run, number, row)

    def check(self, values: list[bytes]) -> None:
        found = [each for each in values if each.split()[0] == b"%d" % self.run]
        there = {int(each.split()[1]) for each in found}
        assert found == [self.value(number, row) for number in sorted(there) for row in range(4)]
        assert self.done <= there <= self.done | self.cut


Program = Callable[[blocking.Producer, Rows], None]


def _blocks(producer: blocking.Producer, rows: Rows) -> None:
    """Each is left at whatever interrupts it, and the next one is entered."""
    for number in range(ROUNDS):
        try:
            with producer.transaction() as transaction:
                for row in range(2):
                    transaction.send(rows.topic, rows.value(number, row))
                table = pa.table({"value": [rows.value(number, row) for row in (2, 3)]})
                transaction.send_table(rows.topic, table)
                if number == 1:
                    transaction.send_offsets({rows.place: 1}, rows.topic)
        except Interrupted:
            rows.cut.add(number)
        else:
            rows.done.add(number)


def _calls(producer: blocking.Producer, rows: Rows) -> None:
    """What is interrupted before the end is begun is aborted, and done again."""
    _again(producer.init_transactions)
    for number in range(ROUNDS):
        while True:
            _again(producer.begin_transaction)
            try:
                for row in range(3):
                    producer.send(rows.topic, rows.value(number, row))
                producer.flush()
                table = pa.table({"value": [rows.value(number, 3)]})
                producer.send_table(rows.topic, table)
                producer.send_offsets_to_transaction({rows.place: 1}, rows.topic)
            except Interrupted:
                _again(producer.abort_transaction)
                continue
            break
        if number == 1:
            _again(producer.abort_transaction)
        else:
            _again(producer.commit_transaction)
            rows.done.add(number)


def _again(call: Callable[[], Any]) -> None:
    """As the documentation says of all of these: called again, it works, or says how it ended."""
    try:
        call()
    except Interrupted:
        call()


PROGRAMS: dict[str, Program] = {"blocks": _blocks, "calls": _calls}


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_transaction_is_whole_whatever_wait_is_interrupted(
    bootstrap: str, topic: str, program: Program, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Rows] = []
    for at in range(1, MOST_WAITS):
        rows = Rows(topic, at)
        with blocking.Producer(bootstrap, LITTLE, transactional_id=topic) as producer:
            with monkeypatch.context() as patch:
                count = interrupt_waits(patch, partial(eq, at), answered=answered)
                program(producer, rows)
            runs.append(rows)
            producer.metrics()
            assert producer._client._block is None
            assert producer.state is ProducerState.READY
        if count[0] < at:
            break
    assert ROUNDS * 5 < len(runs) < MOST_WAITS - 1
    values = visible(bootstrap, topic)
    for rows in runs:
        rows.check(values)
    assert runs[-1].done | {1} == {0, 1, 2}


@pytest.mark.parametrize("answered", [True, False])
def test_who_is_interrupted_while_a_transaction_begins_has_none(
    bootstrap: str, topic: str, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.Producer(bootstrap, LITTLE, transactional_id=topic) as producer:
        producer.init_transactions()
        for begin in (producer.begin_transaction, producer.transaction().__enter__):
            with monkeypatch.context() as patch:
                interrupt_waits(patch, lambda _: True, answered=answered)
                with pytest.raises(Interrupted):
                    begin()
            producer.metrics()
            assert (producer.state, producer._client._block) == (ProducerState.READY, None)
        with producer.transaction() as transaction:
            transaction.send(topic, b"1")
    assert visible(bootstrap, topic) == [b"1"]


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_block_whose_end_is_interrupted_does_not_stay_open(
    bootstrap: str, topic: str, fails: bool, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = KeyError() if fails else None
    with blocking.Producer(bootstrap, LITTLE, transactional_id=topic) as producer:
        block = producer.transaction()
        block.start()
        block.send(topic, b"0")
        with monkeypatch.context() as patch:
            interrupt_waits(patch, lambda _: True, answered=answered)
            with pytest.raises(Interrupted):
                block.__exit__(KeyError if fails else None, error, None)
        producer.metrics()
        assert (producer.state, producer._client._block) == (ProducerState.READY, None)
        with producer.transaction() as transaction:
            transaction.send(topic, b"1")
    expected = [[b"1"], [b"0", b"1"]] if answered and not fails else [[b"1"]]
    assert visible(bootstrap, topic) in expected


def test_that_finds_a_client_that_takes_nothing_back(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as bug:
        bug.setattr(OutstandingCalls, "_settling", lambda calls: None)
        for program, answered in (("blocks", True), ("blocks", False), ("calls", True)):
            with pytest.raises((AssertionError, ClientError)):
                test_a_transaction_is_whole_whatever_wait_is_interrupted(
                    bootstrap, topic, PROGRAMS[program], answered, monkeypatch
                )


def test_a_settling_that_is_interrupted_is_done_again(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before its first step, as often as anybody likes."""
    with blocking.Producer(bootstrap, LITTLE, transactional_id=topic) as producer:
        producer.init_transactions()
        with monkeypatch.context() as patch:
            interrupt_waits(patch, lambda number: True, answered=True)
            with pytest.raises(Interrupted):
                producer.begin_transaction()
        for answered in (False, False, True):
            with monkeypatch.context() as patch:
                interrupt_waits(patch, lambda number: True, answered=answered)
                with pytest.raises(Interrupted):
                    producer.begin_transaction()
        _blocks(producer, rows := Rows(topic, 0))
    assert rows.done == {0, 1, 2}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_producer_meets_signals_at_any_time(bootstrap: str, topic: str) -> None:
    """As Ctrl-C that a program catches, in the calls that begin and end transactions, too."""
    interrupted = 0
    runs: list[Rows] = []
    with blocking.Producer(bootstrap, LITTLE, transactional_id=topic) as producer:
        producer.init_transactions()
        with alarms(0.002) as is_armed:
            while len(runs) < 100 or not interrupted:
                rows = Rows(topic, len(runs))
                runs.append(rows)
                block = producer.transaction()
                try:
                    is_armed[0] = True
                    block.start()
                    for row in range(4):
                        block.send(topic, rows.value(0, row))
                    block.close()
                    is_armed[0] = False
                    rows.done.add(0)
                except Interrupted:
                    interrupted += 1
                    rows.cut.add(0)
                    block.__exit__(Interrupted, Interrupted(), None)
    values = visible(bootstrap, topic)
    for rows in runs:
        rows.check(values)


# --- sessions and administration ------------------------------------------------------------------

COPIED = 12


def _copy(bootstrap: str, topic: str, received: list[int]) -> bool:
    """Whether it was interrupted; who is leaves the session."""
    settings: dict[str, Any] = {
        "group_id": topic,
        "topics": [topic],
        "auto_offset_reset": "earliest",
        "max_poll_records": 5,
        "fetch_max_wait_ms": 10,
        **LITTLE,
    }
    try:
        with blocking.Session(bootstrap, settings) as session:
            for batch, txn in session:
                for record in batch:
                    txn.send(f"{topic}-out", record.value)
                values = pa.table({"value": [b"end"]})
                txn.send_table(f"{topic}-out", values).result()
                txn.send_offsets({TopicPartition(topic, 0): 1}, f"{topic}-other")
                received.append(record.offset)
                if record.offset == COPIED - 1:
                    session.stop()
    except Interrupted:
        return True
    return False


@pytest.mark.parametrize("answered", [True, False])
def test_a_session_counts_once_whatever_wait_is_interrupted(
    bootstrap: str, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(1, MOST_WAITS):
        name = f"s-{next(NUMBERS)}"
        with blocking.Admin(bootstrap) as admin:
            admin.create_topic(name, partitions=1)
            admin.create_topic(f"{name}-out", partitions=1)
        with blocking.Producer(bootstrap) as producer:
            for row in range(COPIED):
                producer.send(name, b"%d" % row)
        received: list[int] = []
        with monkeypatch.context() as patch:
            interrupt_waits(patch, partial(eq, at), answered=answered)
            was_cut = _copy(bootstrap, name, received)
        if was_cut:
            with blocking.Admin(bootstrap) as admin:
                is_done = admin.committed_offsets(name) == {TopicPartition(name, 0): COPIED}
            assert is_done or not _copy(bootstrap, name, received)
        values = [each for each in visible(bootstrap, f"{name}-out") if each != b"end"]
        assert values == [b"%d" % row for row in range(COPIED)], at
        if not was_cut:
            break
    assert COPIED < at < MOST_WAITS - 1


Ask = Callable[[blocking.Admin, str], Any]
ASKS: dict[str, Ask] = {
    "create_topic": lambda admin, name: admin.create_topic(f"{name}-new"),
    "add_partitions": lambda admin, name: admin.add_partitions(name, 3),
    "list_topics": lambda admin, name: admin.list_topics(),
    "commit_offsets": lambda admin, name: admin.commit_offsets("g", {TopicPartition(name, 0): 1}),
    "committed_offsets": lambda admin, name: admin.committed_offsets("g"),
    "delete_records": lambda admin, name: admin.delete_records({TopicPartition(name, 0): 0}),
    "offset_ranges": lambda admin, name: admin.offset_ranges([TopicPartition(name, 0)]),
    "list_transactions": lambda admin, name: admin.list_transactions(),
    "delete_topic": lambda admin, name: admin.delete_topic(f"{name}-out"),
}


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_administration_goes_on_after_a_call_that_was_interrupted(
    bootstrap: str, topic: str, ask: Ask, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.Admin(bootstrap) as admin:
        with monkeypatch.context() as patch:
            interrupt_waits(patch, lambda _: True, answered=answered)
            with pytest.raises(Interrupted):
                ask(admin, topic)
        try:
            ask(admin, topic)
        except ClientError:  # it was done
            assert ask in (ASKS["create_topic"], ASKS["add_partitions"], ASKS["delete_topic"])
        names = {each.name for each in admin.list_topics()}
        assert topic in names
        assert (f"{topic}-new" in names) == (ask is ASKS["create_topic"])
        assert (f"{topic}-out" not in names) == (ask is ASKS["delete_topic"])
