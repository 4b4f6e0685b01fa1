"""Several threads use one blocking producer as if each had it for itself; and several work on one
transaction, of which one fails. What is promised is that a transaction is whole."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import onceflow
from onceflow import blocking
from onceflow.client.errors.requests import ClientError, FatalProducerError
from onceflow.client.transactions.states import ProducerState
from onceflow.types import TopicPartition
from tests.unit.blocking.reading_back import visible

THREADS = 4
STEPS = 60
TOPICS = ("a", "b")
COMMITTED, ABORTED = "committed", "aborted"
LITTLE: dict[str, Any] = {
    "linger_ms": 1,
    "batch_size": 200,
    "max_request_size": 300,
    "buffer_memory": 700,
}


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with onceflow.Broker() as broker:
        with blocking.Admin(broker.bootstrap) as admin:
            for name in TOPICS:
                admin.create_topic(name, partitions=1)
        yield broker.bootstrap


class Users:
    """Threads that begin, send, commit and abort, in blocks and without."""

    def __init__(self, producer: blocking.Producer) -> None:
        self._ours = producer
        self.accepted: dict[int, list[bytes]] = defaultdict(list)
        """By the number of the transaction for which it was sent."""
        self.told: dict[int, set[str]] = defaultdict(set)

    @property
    def committed(self) -> int:
        """How many transactions were, by what was told."""
        return sum(COMMITTED in each for each in tuple(self.told.values()))

    @property
    def _number(self) -> int:
        return self._ours._client._transactional().number

    def use(self, seed: int) -> None:
        rand = random.Random(seed)
        rows = (b"%d-%d" % (seed, number) for number in range(10_000))
        calls: tuple[Callable[[], None], ...] = (
            *[self._ours.begin_transaction] * 2,
            *[lambda: self._send_plainly(rand, rows)] * 8,
            lambda: self._send_table(rows),
            self._send_offsets,
            self._commit,
            self._abort,
            *[lambda: self._block(rand, rows)] * 2,
        )
        for step in range(100 * STEPS):
            if step >= STEPS and self.committed > 4:
                return
            try:
                rand.choice(calls)()
            except FatalProducerError:
                raise
            except ClientError:
                continue

    def _send_plainly(self, rand: random.Random, rows: Iterator[bytes]) -> None:
        before, value = self._number, next(rows)
        self._ours.send(rand.choice(TOPICS), value + bytes(30))
        # Of two transactions it may be in either, and in whole ones it is.
        if before == self._number:
            self.accepted[before].append(value)
        else:
            self.accepted[-1].append(value)

    def _send_table(self, rows: Iterator[bytes]) -> None:
        before, values = self._number, [next(rows) for _ in range(3)]
        self._ours.send_table("b", pa.table({"value": values}))
        self.accepted[before if before == self._number else -1] += values

    def _send_offsets(self) -> None:
        self._ours.send_offsets_to_transaction({TopicPartition("a", 0): 1}, "group")

    def _commit(self) -> None:
        before = self._number
        self._ours.commit_transaction()
        if before == self._number:
            self.told[before].add(COMMITTED)

    def _abort(self) -> None:
        before = self._number
        self._ours.abort_transaction()
        if before == self._number:
            self.told[before].add(ABORTED)

    def _block(self, rand: random.Random, rows: Iterator[bytes]) -> None:
        fails = rand.randrange(3) == 0
        try:
            with self._ours.transaction() as transaction:
                number = transaction._client._number or 0
                for _ in range(6):
                    value = next(rows)
                    transaction.send(rand.choice(TOPICS), value + bytes(30))
                    self.accepted[number].append(value)
                    if fails and rand.randrange(4) == 0:
                        raise KeyError
        except KeyError:
            return
        self.told[number].add(COMMITTED)

    def check(self, found: list[bytes]) -> None:
        there = [each.rstrip(b"\0") for each in found]
        assert len(set(there)) == len(there)
        assert set(there) <= {row for rows in self.accepted.values() for row in rows}
        self.accepted.pop(-1, None)
        for number, rows in self.accepted.items():
            visible_rows = [row for row in rows if row in there]
            assert visible_rows in ([], rows), number
            told = self.told[number]
            assert len(told) <= 1
            assert not rows or not told or (COMMITTED in told) == bool(visible_rows)


@pytest.mark.parametrize("seed", range(4))
def test_a_transaction_is_whole_however_many_threads_use_its_producer(
    bootstrap: str, seed: int
) -> None:
    with blocking.Producer(bootstrap, LITTLE, transactional_id="id") as producer:
        producer.init_transactions()
        users = Users(producer)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(users.use, range(seed * THREADS, (seed + 1) * THREADS)))
        producer.metrics()
        if producer.state is not ProducerState.READY:
            producer.abort_transaction()
        with producer.transaction() as transaction:  # it is as good as new
            transaction.send("a", b"last")
    users.accepted[0].append(b"last")
    users.check([value for name in TOPICS for value in visible(bootstrap, name)])
    assert users.committed > 4


class Fails(Exception):
    """What one of the threads raises."""


ROWS = 50


def _work(transaction: blocking.Transaction, thread: int, *, fails: bool) -> None:
    for row in range(ROWS):
        if fails and row == ROWS // 2:
            raise Fails
        transaction.send("a", b"%d-%d" % (thread, row))


def _together(producer: blocking.Producer, failing: int | None) -> None:
    """One transaction of four threads, and nobody waits for the others when one fails."""
    with ThreadPoolExecutor(THREADS) as pool, producer.transaction() as transaction:
        works = [
            pool.submit(_work, transaction, each, fails=each == failing) for each in range(THREADS)
        ]
        if failing is not None:
            works[failing].result()
        for work in works:
            work.result()


def test_work_of_four_threads_of_which_one_fails_is_redone_and_counts_once(bootstrap: str) -> None:
    with blocking.Producer(bootstrap, LITTLE, transactional_id="id") as producer:
        for attempt in range(12):
            with pytest.raises(Fails):
                _together(producer, attempt % THREADS)
        _together(producer, None)
    expected = sorted(b"%d-%d" % (each, row) for each in range(THREADS) for row in range(ROWS))
    assert sorted(visible(bootstrap, "a")) == expected
