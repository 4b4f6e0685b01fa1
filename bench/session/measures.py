"""The measures of a session: the same loop by two clients, on one broker, inside one turn.

Each turn goes there and back, as in `client_measures`. The input is there before the clock runs;
what is measured is transactions of so many records, one after the other. On our own broker there
is a client beside them that does next to nothing: how much of the time is the broker's.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from bench.client.measures import PARTITIONS, Work, compared, confluent, there_and_back
from bench.common.targets import Ours
from bench.common.turn import Measure, Turn as AnyTurn, Values, create_topic, python_load

RECORD_BYTES: Final = 100
WARM_UP: Final = 50
"""Transactions before the clock runs: meanwhile each client learns what the broker makes it wait
for, and Python collects once what loading modules has left, some 60 ms with compiled kernels."""
BATCHES: Final = (1, 100, 1000)
READY: Final = "ready"
TABLES: Final = 1000
"""Records of a batch that our session sends on as a table, as one would that are many."""


class Scale(NamedTuple):
    """Transactions of one load, by the records of each."""

    onceflow: dict[int, int]
    aiokafka: dict[int, int]
    ready: dict[int, int]
    """Of the client that does next to nothing; where there is no number, it does not run."""


FULL: Final = Scale(
    {1: 1000, 100: 600, 1000: 250},
    {1: 150, 100: 120, 1000: 100},
    {1: 1000, 100: 1000, 1000: 500},
)
QUICK: Final = Scale(
    {1: 30, 100: 20, 1000: 10}, {1: 10, 100: 5, 1000: 3}, {1: 30, 100: 30, 1000: 10}
)
Turn: TypeAlias = AnyTurn[Scale]


def loop(turn: Turn, batch: int, tables: bool = False) -> Values:
    """Transactions of `batch` records each."""
    source, out = f"source-{batch}", "out"
    counts = {"onceflow": turn.scale.onceflow[batch], "aiokafka": turn.scale.aiokafka[batch]}
    name = "session-tables" if tables else f"session-{batch}"
    create_topic(turn.target, out, PARTITIONS)
    most = (max(counts.values()) + WARM_UP + 1) * batch
    fill(turn, source, max(most, 1000))

    def work(client: str) -> Work:
        records = counts[client] * batch
        run = partial(
            python_load,
            turn,
            module="session.load_session",
            load="loop",
            client=client,
            topic=source,
            out=out,
            records=records,
            batch=batch,
            tables=int(tables),
            warm_up=WARM_UP,
        )
        return Work(run, records)

    loads = {client: work(client) for client in counts}
    if isinstance(turn.target, Ours) and batch in turn.scale.ready and not tables:
        loads[READY] = ready(turn, source, out, batch)
    costs = there_and_back(loads)
    values = compared(name, costs, "aiokafka")
    if READY in costs:
        values[f"{name}-ceiling"] = costs["aiokafka"].seconds / costs[READY].seconds
    return values


def ready(turn: Turn, source: str, out: str, batch: int) -> Work:
    """Not for Apache Kafka, which refuses who does not wait for the end of the one before."""
    records = turn.scale.ready[batch] * batch
    run = partial(
        python_load,
        turn,
        module="session.load_ready",
        load="loop",
        topic=source,
        out=out,
        partitions=PARTITIONS,
        records=records,
        batch=batch,
    )
    return Work(run, records)


def fill(turn: Any, topic: str, records: int) -> None:
    """Once for all rounds: everybody reads it in a group of their own."""
    if turn.round > 0:
        return
    create_topic(turn.target, topic, PARTITIONS)
    confluent(turn, load="produce", topic=topic, records=records, record_bytes=RECORD_BYTES)


def warm_up(turn: Turn) -> None:
    """What a JVM needs before it shows what it can do."""
    before = turn._replace(round=-1)
    for batch in BATCHES:
        loop(before, batch)


MEASURES: Final = (
    *(Measure(f"session-{batch}", partial(loop, batch=batch)) for batch in BATCHES),
    Measure("session-tables", partial(loop, batch=TABLES, tables=True)),
)
