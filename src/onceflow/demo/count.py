"""The count at the end: what the orders must have led to, held against what readers found.

The readers are those of a Kafka client that others wrote and that knows nothing of Onceflow. One
watches what is committed while the demo runs; another reads everything at its end.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from onceflow.demo.driver import DemoStuck
from onceflow.demo.orders import DEAD_LETTERS, PARTITIONS, TOTALS, order

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"
_PATIENCE_S: Final = 30.0
_AT_ONCE: Final = 2_000
_LOOK_S: Final = 0.1
_QUIET: Final = {
    "log_level": 0,
    "error_cb": lambda _: None,  # that a broker is gone is no news here
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    # Else it forgets its only broker while that is gone, and may wait for the forgotten one.
    "metadata.recovery.strategy": "none",
}


@dataclass(frozen=True, slots=True)
class Output:
    """The values of all records that the pipeline has written."""

    totals: list[bytes] = field(default_factory=list)
    dead_letters: list[bytes] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.totals) + len(self.dead_letters)


def read_all(bootstrap: str, isolation: str) -> Output:
    """From the beginning of both topics to their end."""
    from confluent_kafka import KafkaError

    found = Output()
    values = {TOTALS: found.totals, DEAD_LETTERS: found.dead_letters}
    consumer, partitions = _reader(bootstrap, isolation)
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + _PATIENCE_S
    while len(ended) < partitions:
        if time.monotonic() > deadline:
            raise DemoStuck(f"a reader did not reach the end within {_PATIENCE_S:.0f} s")
        for message in consumer.consume(_AT_ONCE, _LOOK_S):
            error = message.error()
            if error is None:
                values[message.topic()].append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add((message.topic(), message.partition()))
    consumer.close()
    return found


def _reader(bootstrap: str, isolation: str) -> tuple[Any, int]:
    """A consumer at the beginning of all partitions, and their number."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "auditors",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = [
        TopicPartition(topic, number, OFFSET_BEGINNING)
        for topic in (TOTALS, DEAD_LETTERS)
        for number in range(PARTITIONS[topic])
    ]
    consumer.assign(places)
    return consumer, len(places)


class Sample(NamedTuple):
    """How far everything is at one moment."""

    at_s: float
    orders: int
    """Acknowledged ones."""
    totals: int
    dead_letters: int

    @property
    def committed(self) -> int:
        return self.totals + self.dead_letters


class Watcher:
    """A thread that counts what is committed as soon as it can be read, and when that was."""

    def __init__(
        self, bootstrap: str, elapsed_s: Callable[[], float], orders: Callable[[], int]
    ) -> None:
        self._bootstrap, self._elapsed_s, self._orders = bootstrap, elapsed_s, orders
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onceflow-demo-watch", daemon=True)
        self.samples = [Sample(elapsed_s(), 0, 0, 0)]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        consumer, _ = _reader(self._bootstrap, READ_COMMITTED)
        seen: Counter[str] = Counter()
        while not self._is_over.is_set():
            messages = consumer.consume(_AT_ONCE, _LOOK_S)
            seen.update(each.topic() for each in messages if each.error() is None)
            self.samples.append(
                Sample(self._elapsed_s(), self._orders(), seen[TOTALS], seen[DEAD_LETTERS])
            )
        consumer.close()


_FIELDS: Final = ("order_id", "total_cents")
Thing = TypeVar("Thing", bound=Hashable)


class Count(NamedTuple):
    """What was found; exact if every order is there once, where it belongs, with its total."""

    orders: int
    broken: int
    """Orders that belong into the dead letters."""
    totals: int
    dead_letters: int
    duplicates: int
    losses: int
    strangers: int
    """Rows that follow from no order, or from one that belongs elsewhere."""
    hidden: int
    """Written in transactions that were aborted: there, and never shown."""
    cents: int
    cents_expected: int

    @property
    def is_exact(self) -> bool:
        wrong = self.duplicates + self.losses + self.strangers
        return not wrong and self.cents == self.cents_expected


class Deviation(NamedTuple):
    """How two bags differ."""

    duplicates: int
    losses: int
    strangers: int


def count(bootstrap: str, orders: int) -> Count:
    """Reads everything twice: as anybody should, and with what was aborted."""
    shown = read_all(bootstrap, READ_COMMITTED)
    written = read_all(bootstrap, READ_UNCOMMITTED)
    return judge(orders, shown, written.rows - shown.rows)


def judge(orders: int, shown: Output, hidden: int) -> Count:
    """By the number and the total of each good order, and by each byte of the broken ones."""
    good: Counter[tuple[int, int]] = Counter()
    broken: Counter[bytes] = Counter()
    for each in map(order, range(orders)):
        if each.is_broken:
            broken[each.value] += 1
        else:
            good[each.number, each.total_cents] += 1
    found = Counter(map(_row, shown.totals))
    of_totals = deviation(good, found)
    of_letters = deviation(broken, Counter(shown.dead_letters))
    duplicates, losses, strangers = map(sum, zip(of_totals, of_letters, strict=True))
    return Count(
        orders=orders,
        broken=broken.total(),
        totals=len(shown.totals),
        dead_letters=len(shown.dead_letters),
        duplicates=duplicates,
        losses=losses,
        strangers=strangers,
        hidden=hidden,
        cents=sum(cents * times for (_, cents), times in found.items()),
        cents_expected=sum(cents for _, cents in good),
    )


def _row(value: bytes) -> tuple[int, int]:
    row = json.loads(value)
    number, cents = (int(row[name]) for name in _FIELDS)
    return number, cents


def deviation(expected: Counter[Thing], found: Counter[Thing]) -> Deviation:
    """`expected` has each thing once."""
    more = found - expected
    duplicates = sum(times for each, times in more.items() if each in expected)
    return Deviation(duplicates, (expected - found).total(), more.total() - duplicates)
