"""One worker of `onceflow demo`, a process of its own: payments in, bookings out, exactly once.

The loop is the one that every guide shows: read some records, write what follows from them, send
the offsets that were read into the same transaction, commit. It is written with confluent-kafka,
which knows nothing of Onceflow. What it does is told on its standard output, one JSON object a
line; at the point that it is given it says so and waits there, to be hit.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Final

from onceflow.cli.demo_moments import Point

PAYMENTS: Final = "payments"
BOOKINGS: Final = "bookings"
PARTITIONS: Final = 4
GROUP: Final = "bookkeeping"
WORKER: Final = "bookkeeper"
_BATCH: Final = 200
_SECONDS: Final = 60.0
_SILENT: Final = logging.getLogger(__name__)
_SILENT.disabled = True  # being fenced is what is expected here, not what to shout about
_BEFORE_THE_POINT: Final = 3
"""Transactions that go well before the one that is hit."""
QUIET: Final = {
    "log_level": 0,
    "error_cb": lambda _: None,  # that a broker is gone is no news here
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    # Else it forgets its only broker while that is gone, and may wait for the forgotten one.
    "metadata.recovery.strategy": "none",
}


def booking(payment: bytes) -> bytes:
    """What follows from a payment."""
    fields = json.loads(payment)
    return json.dumps({**fields, "fee": fields["cents"] // 100}).encode()


class Worker:
    """Consumes, transforms and produces until it is killed or fenced."""

    def __init__(self, bootstrap: str, point: Point | None) -> None:
        from confluent_kafka import Consumer, Producer

        common = {**QUIET, "bootstrap.servers": bootstrap}
        self._point = point
        self._transactions = 0
        self._consumer = Consumer(
            {
                **common,
                "group.id": GROUP,
                "group.instance.id": WORKER,  # so that a new worker takes over at once
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
            },
            logger=_SILENT,
        )
        self._producer = Producer({**common, "transactional.id": WORKER}, logger=_SILENT)

    def run(self) -> None:
        self._producer.init_transactions(_SECONDS)
        self._consumer.subscribe([PAYMENTS])
        while True:
            records = [each for each in self._consumer.consume(_BATCH, 0.1) if not each.error()]
            if records:
                self._book_or_abort(records)

    def _book_or_abort(self, records: list[Any]) -> None:
        from confluent_kafka import KafkaException

        try:
            self._book(records)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._producer.abort_transaction(_SECONDS)
            self._rewind()
            tell(aborted=len(records))

    def _rewind(self) -> None:
        """What was read in an aborted transaction is to be read again."""
        from confluent_kafka import OFFSET_BEGINNING

        for place in self._consumer.committed(self._consumer.assignment(), _SECONDS):
            place.offset = max(place.offset, OFFSET_BEGINNING)
            self._consumer.seek(place)

    def _book(self, records: list[Any]) -> None:
        producer, consumer = self._producer, self._consumer
        self._transactions += 1
        self._reach(Point.READ)
        producer.begin_transaction()
        for record in records:
            producer.produce(BOOKINGS, booking(record.value()), partition=record.partition())
        producer.flush(_SECONDS)
        self._reach(Point.WRITTEN)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), _SECONDS
        )
        self._reach(Point.OFFSETS_SENT)
        if self._is_hit_at(Point.COMMITTING):
            tell(point=Point.COMMITTING.value)  # and does not wait: the kill comes in the midst
        producer.commit_transaction(_SECONDS)
        self._reach(Point.COMMITTED)
        tell(booked=len(records))

    def _is_hit_at(self, point: Point) -> bool:
        return point is self._point and self._transactions == _BEFORE_THE_POINT + 1

    def _reach(self, point: Point) -> None:
        if self._is_hit_at(point):
            tell(point=point.value)
            sys.stdin.readline()


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    from confluent_kafka import KafkaException

    bootstrap, point = sys.argv[1], sys.argv[2]
    try:
        Worker(bootstrap, Point(point) if point else None).run()
    except KafkaException as error:
        tell(ended=error.args[0].name())


if __name__ == "__main__":
    main()
