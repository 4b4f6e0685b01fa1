"""The count at the end: every payment booked, and none of them twice."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Final, NamedTuple

from onceflow.cli.demo_worker import BOOKINGS, PARTITIONS, QUIET

_PATIENCE_SECONDS: Final = 15.0


class Count(NamedTuple):
    """What a reader of committed records found, and one that sees everything."""

    payments: int
    booked: int
    missing: int
    repeated: int
    hidden: int
    """Written in transactions that were aborted: there, and never shown."""

    @property
    def is_good(self) -> bool:
        return not self.missing and not self.repeated and self.booked == self.payments


def count(bootstrap: str, payments: int) -> Count:
    """Reads all bookings, twice: as anybody should, and with what was aborted."""
    shown = read_all(bootstrap, "read_committed")
    written = read_all(bootstrap, "read_uncommitted")
    return judge(payments, shown, written)


def judge(payments: int, shown: Counter[int], written: Counter[int]) -> Count:
    return Count(
        payments,
        shown.total(),
        sum(number not in shown for number in range(payments)),
        sum(times - 1 for times in shown.values()),
        written.total() - shown.total(),
    )


def read_all(bootstrap: str, isolation: str) -> Counter[int]:
    """How often each payment is in the bookings."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "auditors",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign(
        [TopicPartition(BOOKINGS, each, OFFSET_BEGINNING) for each in range(PARTITIONS)]
    )
    found: Counter[int] = Counter()
    at_end: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(at_end) < PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(2000, 0.2):
            error, value = message.error(), message.value()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition() or 0)
            elif error is None and value is not None:
                found[int(json.loads(value)["payment"])] += 1
    consumer.close()
    return found


def verdict_lines(counted: Count, moments: int) -> list[str]:
    """The end of the story, in rich's markup."""
    if not counted.is_good:
        broken = (
            f"[bold red]BROKEN:[/] of {counted.payments:,} payments {counted.missing:,} are not "
            f"booked and {counted.repeated:,} bookings are one too many."
        )
        return [broken]
    good = (
        f"[bold green]Each counted once:[/] {counted.payments:,} payments, {counted.booked:,} "
        f"bookings, after {moments} deaths. None is missing, none is there twice."
    )
    hidden = (
        f"{counted.hidden:,} more bookings were written in transactions that did not end well: "
        "they are in the log, and no reader of committed records ever saw them."
    )
    return [good, hidden]
