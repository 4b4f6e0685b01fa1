"""Load by librdkafka in transactions, and beside it the same load without them.

    python -m bench.transactions.load_transactions one --bootstrap HOST:PORT --topic NAME ...

A process of its own, so that its cost is not the bench's; prints one line of JSON. Ends with an
error unless every record was acknowledged and every transaction committed.
- `one`: milliseconds of transactions of one record each, one after the other.
- `stream`: as many records as go in a time, in one of the `KINDS` of producers; a transactional one
  commits whenever `--commit-ms` have passed since its transaction began.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bench.common.load_librdkafka import (
    GIVE_UP_SECONDS,
    IN_FLIGHT,
    LINGER_MS,
    LoadError,
    Numbers,
    flush,
    make_producer,
    wait_for_room,
)

AT_ONCE: Final = 50
WAITING_RECORDS: Final = 1000
"""Of 1 KB. More would only make the commit late, which waits for them; fewer would not keep 8
partitions busy."""
TIMEOUT_MS: Final = 60_000
LIBRDKAFKA_IN_FLIGHT: Final = 1_000_000
"""Its default: no limit but the records that wait."""

KINDS: Final[dict[str, dict[str, object]]] = {
    "unlimited-in-flight": {"max.in.flight.requests.per.connection": LIBRDKAFKA_IN_FLIGHT},
    "five-in-flight": {"max.in.flight.requests.per.connection": IN_FLIGHT},
    "in-order": {"max.in.flight.requests.per.connection": 1},
    "idempotent": {"enable.idempotence": True},
    "transactional": {"enable.idempotence": True, "transaction.timeout.ms": TIMEOUT_MS},
}
"""What each adds to acks=all. The idempotent ones have five requests in flight as well: no more are
allowed."""


def transactional_id() -> str:
    return f"bench-{os.getpid()}-{time.monotonic_ns()}"


def one(arguments: argparse.Namespace) -> Numbers:
    """One record, one transaction, one at a time."""
    producer = make_producer(
        arguments,
        **KINDS["transactional"],
        **{"transactional.id": transactional_id(), "linger.ms": 0},
    )
    producer.init_transactions(GIVE_UP_SECONDS)
    value = os.urandom(arguments.record_bytes)
    milliseconds: list[float] = []
    # The first ones wait for connections and metadata, and do not count.
    for number in range(arguments.warm_up + arguments.transactions):
        begin = time.perf_counter()
        producer.begin_transaction()
        producer.produce(arguments.topic, value, partition=number % arguments.partitions)
        producer.commit_transaction(GIVE_UP_SECONDS)
        milliseconds.append((time.perf_counter() - begin) * 1000)
    return {"milliseconds": milliseconds[arguments.warm_up :]}


class Commits:
    """Ends the transaction when its time has come, and begins the next."""

    def __init__(self, producer: Producer, seconds: float) -> None:
        self._producer = producer
        self._seconds = seconds
        self._due = 0.0
        self.count = 0

    def begin(self) -> None:
        if self._seconds:
            self._producer.begin_transaction()
            self._due = time.perf_counter() + self._seconds

    def commit_if_due(self, now: float) -> None:
        if self._seconds and now >= self._due:
            self.commit()
            self.begin()

    def commit(self) -> None:
        if self._seconds:
            self._producer.commit_transaction(GIVE_UP_SECONDS)
            self.count += 1


class Stream:
    """Records to all partitions in turn, by one of the `KINDS` of producers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        settings: dict[str, Any] = {
            **KINDS[arguments.kind],
            "linger.ms": LINGER_MS,
            "batch.size": arguments.batch_bytes,
            "delivery.report.only.error": True,
        }
        is_transactional = arguments.kind == "transactional"
        if is_transactional:
            settings["transactional.id"] = transactional_id()
        self._producer = make_producer(arguments, **settings)
        if is_transactional:
            self._producer.init_transactions(GIVE_UP_SECONDS)
        seconds = arguments.commit_ms / 1000 if is_transactional else 0.0
        self.commits = Commits(self._producer, seconds)
        self._topic = arguments.topic
        self._messages = [{"value": os.urandom(arguments.record_bytes)} for _ in range(AT_ONCE)]
        # Not left to librdkafka, which stays with one partition for a while, nor to the messages,
        # whose own partition `produce_batch` does not look at.
        self._partitions = cycle(range(arguments.partitions))
        self._to_each = AT_ONCE * arguments.partitions
        self._waiting_records = arguments.waiting_records
        self._errors: list[KafkaError] = []

    def send(self, seconds: float) -> int:
        """Some to every partition at least; all is acknowledged when it returns."""
        self.commits.begin()
        end = time.perf_counter() + seconds
        records = 0
        while records < self._to_each or time.perf_counter() < end:
            wait_for_room(self._producer, AT_ONCE, self._waiting_records)
            taken = self._producer.produce_batch(
                self._topic,
                self._messages,
                partition=next(self._partitions),
                on_delivery=self._note,
            )
            if taken != AT_ONCE:
                raise LoadError("librdkafka did not take a record although it had room")
            records += AT_ONCE
            self.commits.commit_if_due(time.perf_counter())
        self.commits.commit()
        flush(self._producer)
        if errors := self._errors:
            raise LoadError(f"{len(errors)} records were not acknowledged, the first: {errors[0]}")
        return records

    def _note(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._errors.append(error)


def stream(arguments: argparse.Namespace) -> Numbers:
    """From the first record to the last acknowledgement, or commit."""
    sending = Stream(arguments)
    warm_up = sending.send(0.0)
    sending.commits.count = 0
    begin = time.perf_counter()
    records = sending.send(arguments.seconds)
    seconds = time.perf_counter() - begin
    return {
        "rate": records / seconds,
        "commits": sending.commits.count / seconds,
        "in_topic": float(warm_up + records),
    }


LOADS: Final[dict[str, Callable[[argparse.Namespace], Numbers]]] = {"one": one, "stream": stream}


def main() -> None:
    parser = argparse.ArgumentParser(description="Load by librdkafka, in transactions.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--transactions", type=int, default=1)
    parser.add_argument("--warm-up", type=int, default=0, help="transactions before the clock runs")
    parser.add_argument("--kind", choices=KINDS, default="transactional")
    parser.add_argument("--commit-ms", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--batch-bytes", type=int, default=64 << 10)
    parser.add_argument(
        "--waiting-records", type=int, default=WAITING_RECORDS, help="not acknowledged yet, at most"
    )
    arguments = parser.parse_args()
    try:
        print(json.dumps(LOADS[arguments.load](arguments)))
    except (LoadError, KafkaException) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
