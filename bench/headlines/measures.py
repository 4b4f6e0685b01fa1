"""The measures of the headlines: those of the other benches, each for a second or so.

Only producing has a measure of its own: librdkafka on one connection, with one kind of producer
after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from bench.broker import measures as broker_measures
from bench.client import measures as client_measures
from bench.common.turn import Measure, S, Turn as AnyTurn, Values, python_load
from bench.session import measures as session_measures
from bench.transactions import measures as transactions_measures
from bench.transactions.measures import passing_topic

PARTITIONS: Final = 8
"""librdkafka has one request of an idempotent producer in flight for each partition, at most: with
four, its five would never be."""
BATCH_BYTES: Final = 64 << 10
COMMIT_MS: Final = 100
SESSION_RECORDS: Final = 1000
MANY_WAITING: Final = 10_000
CLIENT_TARGETS: Final = ("ours-os", "kafka")
"""Where clients are compared with each other, which has nothing to do with syncing."""

KINDS: Final[dict[str, dict[str, Any]]] = {
    # What waits bounds what is in flight; the usual thousand would be fifteen batches.
    "unlimited": {"kind": "unlimited-in-flight", "waiting_records": MANY_WAITING},
    "five": {"kind": "five-in-flight"},
    "idempotent": {"kind": "idempotent"},
    "transactional": {"kind": "transactional", "commit_ms": COMMIT_MS},
    # As many bytes wait as with records of 1 KB: a thousand of these would be two batches.
    **{
        f"{kind}-100": {"kind": name, "record_bytes": 100, "waiting_records": MANY_WAITING}
        for kind, name in (("five", "five-in-flight"), ("idempotent", "idempotent"))
    },
    "transactional-100": {
        "kind": "transactional",
        "commit_ms": COMMIT_MS,
        "record_bytes": 100,
        "waiting_records": MANY_WAITING,
    },
}


class Scale(NamedTuple):
    """How much work one turn is: that of the other benches, by their own measures of it."""

    seconds: float
    warm_up_seconds: float
    broker: broker_measures.Scale
    transactions: transactions_measures.Scale
    client: client_measures.Scale
    session: session_measures.Scale


FULL: Final = Scale(
    seconds=1.0,
    warm_up_seconds=1.5,
    broker=broker_measures.FULL._replace(latency_records=1000, seconds=1.0),
    transactions=transactions_measures.FULL._replace(transactions=400, seconds=1.0, passes=1),
    client=client_measures.FULL._replace(
        sent={"1k": 30_000, "100": 100_000}, bulk={"1k": 60_000, "100": 200_000}
    ),
    session=session_measures.FULL._replace(
        onceflow={SESSION_RECORDS: 80}, aiokafka={SESSION_RECORDS: 40}, ready={}
    ),
)
QUICK: Final = Scale(
    seconds=0.3,
    warm_up_seconds=0.1,
    broker=broker_measures.QUICK,
    transactions=transactions_measures.QUICK,
    client=client_measures.QUICK,
    session=session_measures.QUICK._replace(ready={}),
)
Turn: TypeAlias = AnyTurn[Scale]


def produce(turn: Turn) -> Values:
    """All kinds of producers; each beside the one it is compared with, so that a drift of the
    machine falls on both alike."""
    order = list(KINDS) if turn.round % 2 == 0 else list(reversed(KINDS))
    rates = {kind: produced(turn, kind, turn.scale.seconds) for kind in order}
    return {
        **{f"produce-{kind}": rate for kind, rate in rates.items()},
        "idempotent-to-five": rates["idempotent"] / rates["five"],
        "transactional-to-idempotent": rates["transactional"] / rates["idempotent"],
        "idempotent-to-five-100": rates["idempotent-100"] / rates["five-100"],
        "transactional-to-idempotent-100": rates["transactional-100"] / rates["idempotent-100"],
    }


def produced(turn: Turn, kind: str, seconds: float) -> float:
    """Records a second."""
    with passing_topic(turn.target, f"produce-{turn.round}-{kind}", PARTITIONS) as topic:
        how = {"record_bytes": 1024, "batch_bytes": BATCH_BYTES, **KINDS[kind]}
        numbers = python_load(
            turn,
            module="transactions.load_transactions",
            load="stream",
            topic=topic,
            partitions=PARTITIONS,
            seconds=seconds,
            **how,
        )
    return float(numbers["rate"])


def borrowed(
    run: Callable[[AnyTurn[S]], Values], scale: Callable[[Scale], S], *metrics: str
) -> Callable[[Turn], Values]:
    """A measure of another bench; of its numbers only those that are compared here."""

    def measure(turn: Turn) -> Values:
        values = run(AnyTurn(turn.target, turn.round, scale(turn.scale), turn.scratch))
        return {metric: values[metric] for metric in metrics}

    return measure


one = borrowed(transactions_measures.one, lambda scale: scale.transactions, "one", "one-p99")
readers = borrowed(
    transactions_measures.readers,
    lambda scale: scale.transactions,
    "read-uncommitted-rate",
    "read-committed-rate",
)
latency = borrowed(
    broker_measures.latency, lambda scale: scale.broker, "latency-p50", "latency-librdkafka-p50"
)
growth = borrowed(broker_measures.growth, lambda scale: scale.broker, "growth")
send = borrowed(
    partial(client_measures.send, size="1k"), lambda scale: scale.client, "send-1k", "send-1k-cpu"
)
poll = borrowed(
    partial(client_measures.poll, size="1k"),
    lambda scale: scale.client,
    "records-1k",
    "records-1k-cpu",
)
session = borrowed(
    partial(session_measures.loop, batch=SESSION_RECORDS),
    lambda scale: scale.session,
    f"session-{SESSION_RECORDS}",
    f"session-{SESSION_RECORDS}-cpu",
)


def warm_up(turn: Turn) -> None:
    """What a JVM needs before it shows what it can do (cold, it is slower by far); all get it."""
    before = turn._replace(round=-1)
    one(before)
    for kind in KINDS:
        produced(before, kind, turn.scale.warm_up_seconds)
    readers(before)
    growth(before)
    latency(before)
    one(before)


MEASURES: Final = (
    Measure("produce", produce),
    Measure("readers", readers),
    Measure("one", one),
    Measure("latency", latency),
    Measure("growth", growth),
    Measure("send", send, CLIENT_TARGETS),
    Measure("poll", poll, CLIENT_TARGETS),
    Measure("session", session, CLIENT_TARGETS),
)
