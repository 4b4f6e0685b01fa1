"""The measures of transactions: what one costs, what a stream of them loses, what a broker does.

Ratios within one broker (a stream with commits to one without) are taken inside one turn, with the
load that all are compared with at its begin and at its end, so that a drift of the machine falls on
both sides alike.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from confluent_kafka.admin import AdminClient

from bench.broker.measures import java_rate
from bench.common.targets import BenchError, Ours, Target, make_target
from bench.common.turn import (
    LOAD_SECONDS_MAX,
    Measure,
    Turn as AnyTurn,
    Values,
    create_topic,
    python_load,
    quantiles,
    spending,
)

PARTITIONS: Final = 8
"""librdkafka has one request of an idempotent producer in flight for each partition, and five for a
connection: with fewer partitions the streams would be compared by that."""
RECORD_BYTES: Final = 1024
COMMIT_MS: Final = (10, 50, 100, 500, 1000)
USUAL_COMMIT_MS: Final = 100
COUNTED: Final = ("AddPartitionsToTxn", "Produce", "EndTxn")


class Scale(NamedTuple):
    """How much work one turn is."""

    transactions: int
    seconds: float
    passes: int
    java_records: int
    known_ids: int
    open_transactions: int
    new_ids: int


FULL: Final = Scale(
    transactions=1000,
    seconds=2.0,
    passes=2,
    java_records=60_000,
    known_ids=10_000,
    open_transactions=1000,
    new_ids=1000,
)
QUICK: Final = Scale(
    transactions=100,
    seconds=0.3,
    passes=1,
    java_records=10_000,
    known_ids=1000,
    open_transactions=100,
    new_ids=100,
)
Turn: TypeAlias = AnyTurn[Scale]

transactions = partial(python_load, module="transactions.load_transactions", partitions=PARTITIONS)
ids = partial(python_load, module="transactions.load_ids")


# --- one-record transactions ------------------------------------------------------------------


def one(turn: Turn) -> Values:
    """One record of 100 B, committed, again and again; and what that leaves in the logs."""
    create_topic(turn.target, "one", PARTITIONS)
    count, warm_up = turn.scale.transactions, turn.scale.transactions // 10
    before = log_bytes(turn.target)
    with spending(turn.target) as spent:
        numbers = transactions(turn, load="one", topic="one", transactions=count, warm_up=warm_up)
    milliseconds = numbers["milliseconds"]
    return {
        "one": 1000 * count / sum(milliseconds),
        **quantiles("one", milliseconds),
        "one-cpu": spent.seconds / (count + warm_up) * 1e6,
        "one-log-bytes": (log_bytes(turn.target) - before) / (count + warm_up),
    }


def log_bytes(target: Target) -> int:
    """Of the topic and of the coordinator's. Others may be on their way out: `os.walk` passes over
    a directory that is gone, `rglob` would not."""
    return sum(
        Path(directory, name).stat().st_size
        for directory, _, names in os.walk(target.directory)
        if Path(directory).name.startswith(("one-", "__transaction_state-"))
        for name in names
        if name.endswith(".log")
    )


# --- streams ----------------------------------------------------------------------------------


def streams(turn: Turn) -> Values:
    """1 KB records: in transactions of several lengths, idempotent, one request at a time, and with
    nothing but five requests in flight; all with acks=all."""
    kinds: dict[str, dict[str, Any]] = {
        **{f"commit-{each}": {"kind": "transactional", "commit_ms": each} for each in COMMIT_MS},
        "idempotent": {"kind": "idempotent"},
        "in-order": {"kind": "in-order"},
    }
    order = list(kinds) if turn.round % 2 == 0 else list(reversed(kinds))
    before = stream(turn, "before", kind="five-in-flight")["rate"]
    numbers = {name: stream(turn, name, **kinds[name]) for name in order}
    plain = (before + stream(turn, "after", kind="five-in-flight")["rate"]) / 2
    rates = {name: each["rate"] for name, each in numbers.items()}
    return {
        "plain-rate": plain,
        **{f"{name}-rate": rate for name, rate in rates.items()},
        **{name: rate / plain for name, rate in rates.items()},
        "commit-100-in-order": rates["commit-100"] / rates["in-order"],
        **{f"commits-{each}": numbers[f"commit-{each}"]["commits"] for each in COMMIT_MS},
    }


def stream(turn: Turn, name: str, **kind: Any) -> Any:
    """On a topic of its own, which is gone afterwards."""
    with passing_topic(turn.target, f"stream-{turn.round}-{name}") as topic:
        return load_stream(turn, topic, **kind)


def load_stream(turn: Turn, topic: str, **kind: Any) -> Any:
    return transactions(
        turn,
        load="stream",
        topic=topic,
        record_bytes=RECORD_BYTES,
        seconds=turn.scale.seconds,
        **kind,
    )


def java(turn: Turn) -> Values:
    """As the articles measured: by Java's ProducerPerformance."""
    plain = ("--command-property", "acks=all", "enable.idempotence=false")
    kinds = {
        "before": plain,
        "idempotent": ("--command-property", "acks=all", "enable.idempotence=true"),
        "commit": ("--transaction-duration-ms", str(USUAL_COMMIT_MS)),
        "after": plain,
    }
    rates: dict[str, float] = {}
    for name, how in kinds.items():
        with passing_topic(turn.target, f"java-{turn.round}-{name}") as topic:
            rates[name] = java_rate(turn.target, topic, turn.scale.java_records, RECORD_BYTES, *how)
    base = (rates["before"] + rates["after"]) / 2
    return {
        "java-plain-rate": base,
        "java-commit-rate": rates["commit"],
        "java-idempotent": rates["idempotent"] / base,
        "java-commit": rates["commit"] / base,
    }


@contextmanager
def passing_topic(target: Target, name: str, partitions: int = PARTITIONS) -> Iterator[str]:
    """There while the block runs: gigabytes that nobody needs any more would fill the disk."""
    create_topic(target, name, partitions)
    yield name
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 3})
    for deleted in admin.delete_topics([name]).values():
        deleted.result(LOAD_SECONDS_MAX)


def readers(turn: Turn) -> Values:
    """The same transactional records, read with both levels of isolation."""
    levels = ("read_uncommitted", "read_committed", "read_committed", "read_uncommitted")
    with passing_topic(turn.target, f"read-{turn.round}") as topic:
        written = load_stream(turn, topic, kind="transactional", commit_ms=USUAL_COMMIT_MS)
        records = int(written["in_topic"])
        seconds = dict.fromkeys(levels, 0.0)
        for level in levels:
            seconds[level] += python_load(
                turn,
                module="common.load_librdkafka",
                load="consume",
                topic=topic,
                partitions=PARTITIONS,
                records=records,
                passes=turn.scale.passes,
                isolation=level,
            )["seconds"]
    read = 2 * records * turn.scale.passes
    return {
        "read-uncommitted-rate": read / seconds["read_uncommitted"],
        "read-committed-rate": read / seconds["read_committed"],
        "read-committed": seconds["read_uncommitted"] / seconds["read_committed"],
    }


# --- what noise cannot hide -------------------------------------------------------------------


def counts(turn: Turn) -> Values:
    """Requests, groups and bytes of a one-record transaction, as the broker counted them. What a
    client does once is in two runs of different length alike, and so is not in their difference."""
    if not isinstance(turn.target, Ours):
        return {}
    count = turn.scale.transactions
    few, many = (totals_after(turn, number) for number in (1, 1 + count))

    def each(*path: str) -> float:
        return (number_at(many, path) - number_at(few, path)) / count

    requests = {name: each("requests", name) for name in COUNTED}
    every = sum(many["requests"].values()) - sum(few["requests"].values())
    values = {f"count-{name}": number for name, number in requests.items()}
    values["count-requests"] = every / count
    if many["journal"] is not None:
        values["count-groups"] = each("journal", "groups")
        values["count-bytes"] = each("journal", "bytes")
    return values


def totals_after(turn: Turn, count: int) -> Any:
    """Of a broker that did nothing but so many transactions."""
    with own_broker(turn, "counts") as own:
        create_topic(own.target, "one", PARTITIONS)
        transactions(own, load="one", topic="one", transactions=count)
        broker = own.target
    if not isinstance(broker, Ours):
        raise BenchError(f"{broker.name} counts nothing")
    return broker.totals()


def number_at(totals: Any, path: tuple[str, ...]) -> int:
    for name in path:
        totals = totals.get(name, 0)
    number: int = totals
    return number


# --- growth -----------------------------------------------------------------------------------


def growth(turn: Turn) -> Values:
    """A whole transaction of a new id beside 10,000 known ones and 1,000 open transactions, to the
    same on an empty broker."""
    if not isinstance(turn.target, Ours):
        return {}
    scale = turn.scale
    with own_broker(turn, "empty") as empty, own_broker(turn, "crowded") as crowded:
        for own in (empty, crowded):
            create_topic(own.target, "fresh", 1)
            create_topic(own.target, "held", 1)
            ids(own, load="fresh", topic="fresh", ids=scale.new_ids // 10)
        ids(crowded, load="hold", topic="held", ids=scale.known_ids, open=scale.open_transactions)
        milliseconds: dict[Turn, list[float]] = {empty: [], crowded: []}
        cpu_seconds = {empty: 0.0, crowded: 0.0}
        for own in (empty, crowded, crowded, empty):
            with spending(own.target) as spent:
                numbers = ids(own, load="fresh", topic="fresh", ids=scale.new_ids)
            milliseconds[own] += numbers["milliseconds"]
            cpu_seconds[own] += spent.seconds
    return {
        "new-id": statistics.median(milliseconds[empty]),
        "crowded": statistics.median(milliseconds[crowded])
        / statistics.median(milliseconds[empty]),
        "crowded-cpu": cpu_seconds[crowded] / cpu_seconds[empty],
    }


@contextmanager
def own_broker(turn: Turn, what: str) -> Iterator[Turn]:
    """A broker like the turn's, on an empty directory; stopped in an orderly way at the end."""
    directory: Path = turn.scratch / f"{what}-{turn.target.name}"
    shutil.rmtree(directory, ignore_errors=True)
    target = make_target(turn.target.name, directory)
    target.start()
    try:
        yield turn._replace(target=target)
    finally:
        target.stop()


def warm_up(turn: Turn) -> None:
    """What a JVM needs before it shows what it can do (cold, it is slower by far); all get it."""
    before = turn._replace(round=-1)
    one(before)
    for kind in ("five-in-flight", "idempotent", "transactional"):
        stream(before, f"warm-up-{kind}", kind=kind)
    readers(before)
    one(before)


MEASURES: Final = (
    Measure("one", one),
    Measure("streams", streams),
    Measure("java", java),
    Measure("readers", readers),
    Measure("counts", counts),
    Measure("growth", growth),
)
