"""The measures of Spark with Onceflow against Flink: the same records from topic to topic, exactly
once by both, on one broker, inside one turn.

Each engine has one warm process. A turn goes there and back (Flink, ours, ..., ours, Flink), so
that a drift of the machine falls on both alike; ratios are taken from those runs. Rates are those
at which rows become visible to readers of committed data, by the times of the commit markers in the
output (`bench.flink.commits`), in one way for both: from the first commit to the last but one.
Fresh ones are counted from the start of their process to the last commit. What every run has
written is read back: each record, once, and changed if it should be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from statistics import fmean
from typing import Final, NamedTuple, TypeAlias
from uuid import uuid4

from bench.common.targets import BenchError
from bench.common.turn import Measure, Turn as AnyTurn, Values
from bench.flink.commits import Commit, first_seen, last_seen, read_commits, steady_rate
from bench.spark.measures import SIZES, Input, count, filled, passing_topic
from bench.spark.sessions import SPARK, Session, fresh_session, warm_session
from tools.flink import ensure_flink

PARTITIONS: Final = 4
FLINK: Final = {"narrow": "sql", "key": "sql", "upper": "udf"}
"""Ours, and the job of Flink that does the same."""
QUERIES: Final = ("sql", "narrow", "key", "upper", "udf")
FRESH: Final = ("sql", "narrow", "upper", "udf")
LETTERS: Final = {"upper": "upper", "udf": "upper"}
"""What becomes of values; elsewhere they stay as they are."""
US: Final = 1e6


class Scale(NamedTuple):
    """How much work one run is."""

    rows: dict[str, int]
    """Of a warm run. Flink takes a second or more for each commit, and there must be some."""
    fresh_rows: dict[str, int]
    rows_a_batch: dict[str, int]
    """Ours, as `bench.spark` has it; Flink has no batches."""
    checkpoint_ms: int
    warm_ups: int
    comes_back: bool
    """Else each query is run once."""


FULL: Final = Scale(
    rows={"100": 2_000_000, "1k": 600_000},
    fresh_rows={"100": 1_000_000, "1k": 300_000},
    rows_a_batch={"100": 200_000, "1k": 60_000},
    checkpoint_ms=1000,
    warm_ups=2,
    comes_back=True,
)
QUICK: Final = Scale(
    rows={"100": 200_000, "1k": 100_000},
    fresh_rows={"100": 20_000, "1k": 10_000},
    rows_a_batch={"100": 40_000, "1k": 20_000},
    checkpoint_ms=200,
    warm_ups=0,
    comes_back=False,
)
Turn: TypeAlias = AnyTurn[Scale]


class Run(NamedTuple):
    """What one run came to."""

    rows: int
    commits: Sequence[Commit]
    begin: float
    """When it was ordered, by the clock on the wall."""
    cpu_seconds: float


def is_flink(query: str) -> bool:
    return query in FLINK.values()


def command(query: str) -> tuple[str, ...]:
    return (str(ensure_flink()), "-m", "bench.flink.load_flink") if is_flink(query) else SPARK


def warm_process(turn: Turn, query: str) -> AbstractContextManager[Session]:
    engine = "flink" if is_flink(query) else "ours"
    return warm_session(engine, turn.scratch.parent, command(query))


def run(turn: Turn, session: Session, query: str, size: str, read: Input) -> Run:
    """Raises `BenchError` when a record is missing, there twice, or not what it should be."""
    pace = (
        {"checkpoint_ms": turn.scale.checkpoint_ms}
        if is_flink(query)
        # The share of each partition is rounded down; no rest may stay for another batch.
        else {"rows_a_batch": turn.scale.rows_a_batch[size] + read.partitions}
    )
    with passing_topic(turn, read.partitions) as topic:
        begin = time.time()
        numbers = session.run(
            query=query,
            name=f"bench-{uuid4().hex}",
            bootstrap=turn.target.bootstrap,
            source=read.topic,
            sink=topic,
            **pace,
        )
        count(turn, topic, read, LETTERS.get(query, "lower"))
        commits = read_commits(turn.target.directory / "logs", topic, read.partitions)
    if (found := sum(commit.rows for commit in commits)) != read.rows:
        raise BenchError(f"{query}: {found} rows were committed, and should be {read.rows}")
    return Run(read.rows, commits, begin, numbers["cpu_seconds"])


def warm(turn: Turn, size: str) -> Values:
    read = filled(turn, size, PARTITIONS, turn.scale.rows[size])
    found: dict[str, list[Run]] = {query: [] for query in QUERIES}
    back = reversed(QUERIES) if turn.scale.comes_back else ()
    for query in (*QUERIES, *back):
        with warm_process(turn, query) as session:
            found[query].append(run(turn, session, query, size, read))
    prefix, values = f"warm-{size}", {}
    for query, runs in found.items():
        steady = fmean(steady_rate(each.commits) for each in runs)
        cpu = fmean(each.cpu_seconds / each.rows for each in runs)
        first = fmean(first_seen(each.commits) - each.begin for each in runs)
        values[f"{prefix}-{query}-rate"] = steady
        values[f"{prefix}-{query}-us"] = cpu * US
        values[f"{prefix}-{query}-first"] = first
    for ours, theirs in FLINK.items():
        cpu = values[f"{prefix}-{theirs}-us"] / values[f"{prefix}-{ours}-us"]
        values[f"{prefix}-{ours}-cpu"] = cpu
    return values | rate_ratios(prefix, values)


def fresh(turn: Turn, size: str) -> Values:
    """Each in a process of its own; the other way round in every other round."""
    read = filled(turn, size, PARTITIONS, turn.scale.fresh_rows[size])
    values = {}
    for query in FRESH if turn.round % 2 == 0 else reversed(FRESH):
        with fresh_session(turn.scratch.parent, command(query)) as session:
            found = run(turn, session, query, size, read)
        seconds = last_seen(found.commits) - session.started
        values[f"fresh-{size}-{query}-rate"] = read.rows / seconds
    return values | rate_ratios(f"fresh-{size}", values)


def rate_ratios(prefix: str, values: Values) -> Values:
    """How many times faster than Flink ours are."""
    return {
        f"{prefix}-{ours}": rate / values[f"{prefix}-{theirs}-rate"]
        for ours, theirs in FLINK.items()
        if (rate := values.get(f"{prefix}-{ours}-rate"))
    }


def warm_up(turn: Turn) -> None:
    """What a JVM needs before it shows what it can do; both get it."""
    for size in SIZES:
        for _ in range(turn.scale.warm_ups):
            warm(turn, size)


MEASURES: Final = (
    *(Measure(f"warm-{size}", partial(warm, size=size)) for size in SIZES),
    *(Measure(f"fresh-{size}", partial(fresh, size=size)) for size in SIZES),
)
