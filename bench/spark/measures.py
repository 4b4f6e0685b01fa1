"""The measures of the Spark floor: the same records from topic to topic by several queries, on one
broker, inside one turn.

Each engine has one warm session, in a process of its own. A turn goes there and back (built-in,
narrow, ..., narrow, built-in), so that a drift of the machine falls on all alike; ratios are taken
from those runs. The rate is that of the batches after the first. Besides the rate there is what a
row costs in CPU time of the engine, JVM and workers, which a busy machine moves far less. What
every run has written is read back: each record, once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import uuid4

from confluent_kafka.admin import AdminClient

from bench.common.targets import BenchError, Target
from bench.common.turn import (
    LOAD_SECONDS_MAX,
    Measure,
    S,
    Turn as AnyTurn,
    Values,
    create_topic,
    have_memory,
    python_load,
    spending,
)
from bench.spark.load_topics import KEY_BYTES
from bench.spark.sessions import Session, fresh_session, warm_session

PARTITIONS: Final = {"warm": 4, "wide": 20, "fresh": 4}
SIZES: Final = {"100": 100, "1k": 1024}
BATCHES: Final = 5
BATCHES_MIN: Final = 2
ENGINES: Final = {
    "builtin": "theirs",
    "foreach": "theirs",
    "narrow": "ours",
    "key": "ours",
    "arrow": "ours",
}
"""Which session runs a query."""
COMPARED: Final = ("builtin", "narrow", "key", "arrow")
FRESH: Final = ("builtin", "narrow", "arrow")
SMALL_ROWS: Final = 10
SETTLE: Final = 3
"""Small batches that do not count, besides the first."""
SCALED: Final = {10: 20, 1000: 12, 100_000: 6, 1_000_000: 3}
"""How many batches of how many rows."""
US: Final = 1e6
MS: Final = 1e3


class Scale(NamedTuple):
    """How much work one run is."""

    rows: dict[str, int]
    small_batches: int
    most_scaled: int
    """No larger batches than that."""
    warm_ups: int
    comes_back: bool
    """Else each query is run once."""


FULL: Final = Scale(
    rows={"100": 1_000_000, "1k": 300_000},
    small_batches=24,
    most_scaled=1_000_000,
    warm_ups=2,
    comes_back=True,
)
QUICK: Final = Scale(
    rows={"100": 20_000, "1k": 10_000},
    small_batches=6,
    most_scaled=100_000,
    warm_ups=0,
    comes_back=False,
)
Turn: TypeAlias = AnyTurn[Scale]


# --- one run ------------------------------------------------------------------------------------


class Input(NamedTuple):
    """A topic that is read, as often as one likes."""

    topic: str
    partitions: int
    rows: int
    record_bytes: int


class Cost(NamedTuple):
    """Of one run."""

    seconds: float
    """Of a row, after the first batch; so is the CPU time."""
    cpu_seconds: float
    broker_seconds: float
    """CPU time of the broker, of a gigabyte that was read and written."""
    first_seconds: float
    """From the start of the query to the end of its first batch."""
    batch_ms: tuple[float, ...]
    """After the first."""


def filled(turn: AnyTurn[S], size: str, partitions: int, rows: int) -> Input:
    """Made when it is first asked for."""
    topic = f"in-{size}-{partitions}-{rows}"
    found = Input(topic, partitions, rows, SIZES[size])
    if topic not in _admin(turn.target).list_topics(timeout=LOAD_SECONDS_MAX).topics:
        create_topic(turn.target, topic, partitions)
        _topics(turn, "fill", topic, found)
    return found


def count(turn: AnyTurn[S], topic: str, like: Input, letters: str = "lower") -> None:
    """Raises `BenchError` unless each record is there, once."""
    _topics(turn, "count", topic, like, letters=letters)


def _topics(turn: AnyTurn[S], load: str, topic: str, like: Input, **options: object) -> None:
    python_load(
        turn,
        "spark.load_topics",
        load,
        topic,
        partitions=like.partitions,
        records=like.rows,
        record_bytes=like.record_bytes,
        **options,
    )


def _admin(target: Target) -> AdminClient:
    return AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 3})


@contextmanager
def passing_topic(turn: AnyTurn[S], partitions: int) -> Iterator[str]:
    """There while the block runs: gigabytes that nobody needs any more would fill the disk."""
    topic = f"out-{uuid4().hex}"
    create_topic(turn.target, topic, partitions)
    have_memory(turn.scratch)
    yield topic
    admin = _admin(turn.target)
    for deleted in admin.delete_topics([topic]).values():
        deleted.result(LOAD_SECONDS_MAX)


def cost(turn: Turn, session: Session, query: str, read: Input, each: int) -> Cost:
    """With batches of so many rows each; raises `BenchError` when a record is missing or there
    twice."""
    with passing_topic(turn, read.partitions) as topic:
        with spending(turn.target) as spent:
            numbers = session.run(
                query=query,
                name=f"bench-{uuid4().hex}",
                bootstrap=turn.target.bootstrap,
                source=read.topic,
                sink=topic,
                rows_a_batch=each,
            )
        count(turn, topic, read)
    return _cost(numbers, read, each, spent.seconds)


def _cost(numbers: Any, read: Input, each: int, broker_seconds: float) -> Cost:
    batches = numbers["batches"]
    if len(batches) < BATCHES_MIN:
        raise BenchError(f"{len(batches)} batches are not enough to leave out the first")
    later = read.rows - each
    seconds = batches[-1]["end"] - batches[0]["end"]
    return Cost(
        seconds=seconds / later,
        cpu_seconds=_cpu_of_row(numbers, read, each),
        broker_seconds=broker_seconds / (read.rows * (read.record_bytes + KEY_BYTES) / 1e9),
        first_seconds=numbers["seconds"] - seconds,
        batch_ms=tuple((one["end"] - one["start"]) * MS for one in batches[1:]),
    )


def _cpu_of_row(numbers: Any, read: Input, each: int) -> float:
    """After the first batch; of all batches, where no other was left when the clock was read."""
    later = read.rows - each * numbers["batches_before"]
    if later > 0 and numbers["cpu_seconds_later"] > 0:
        return float(numbers["cpu_seconds_later"] / later)
    return float(numbers["cpu_seconds"] / read.rows)


def mean(costs: Sequence[Cost]) -> Cost:
    def of(name: str) -> float:
        return statistics.fmean(getattr(each, name) for each in costs)

    return Cost(
        seconds=of("seconds"),
        cpu_seconds=of("cpu_seconds"),
        broker_seconds=of("broker_seconds"),
        first_seconds=of("first_seconds"),
        batch_ms=tuple(each for one in costs for each in one.batch_ms),
    )


# --- the same by all ----------------------------------------------------------------------------


def rows_a_batch(read: Input, batches: int = BATCHES) -> int:
    """The share of each partition is rounded down; no rest may stay for another batch."""
    return read.rows // batches + read.partitions


def there_and_back(turn: Turn, queries: Sequence[str], read: Input, rows: int) -> dict[str, Cost]:
    """Each twice, the second time in the opposite order; all by warm sessions."""
    found: dict[str, list[Cost]] = {query: [] for query in queries}
    back = reversed(queries) if turn.scale.comes_back else ()
    for query in (*queries, *back):
        with warm_session(ENGINES[query], turn.scratch.parent) as session:
            found[query].append(cost(turn, session, query, read, rows))
    return {query: mean(costs) for query, costs in found.items()}


def compared(prefix: str, costs: Mapping[str, Cost]) -> Values:
    """Rates and costs of all, and how many times better than the built-in ones they are."""
    base, values = costs["builtin"], {}
    for query, each in costs.items():
        name = f"{prefix}-{query}"
        values[f"{name}-rate"] = 1 / each.seconds
        values[f"{name}-us"] = each.cpu_seconds * US
        values[f"{name}-broker"] = each.broker_seconds
        values[f"{name}-first"] = each.first_seconds
        if query != "builtin":
            values[name] = base.seconds / each.seconds
            values[f"{name}-cpu"] = base.cpu_seconds / each.cpu_seconds
            values[f"{name}-broker-share"] = each.broker_seconds / base.broker_seconds
    return values


def warm(turn: Turn, kind: str, size: str) -> Values:
    rows = turn.scale.rows[size]
    read = filled(turn, size, PARTITIONS[kind], rows)
    costs = there_and_back(turn, COMPARED, read, rows_a_batch(read))
    if kind == "warm":
        # Once is enough: it takes ten times as long as the others.
        with warm_session(ENGINES["foreach"], turn.scratch.parent) as session:
            costs["foreach"] = cost(turn, session, "foreach", read, rows_a_batch(read))
    return compared(f"{kind}-{size}", costs)


def fresh(turn: Turn, size: str) -> Values:
    """Each in a session of its own; the other way round in every other round."""
    rows = turn.scale.rows[size]
    read = filled(turn, size, PARTITIONS["fresh"], rows)
    costs = {}
    for query in FRESH if turn.round % 2 == 0 else reversed(FRESH):
        with fresh_session(turn.scratch.parent) as session:
            costs[query] = cost(turn, session, query, read, rows_a_batch(read))
    return compared(f"fresh-{size}", costs)


def small(turn: Turn) -> Values:
    """Batches of ten rows, one after the other."""
    rows = SMALL_ROWS * (1 + SETTLE + turn.scale.small_batches)
    read = filled(turn, "100", PARTITIONS["warm"], rows)
    costs = there_and_back(turn, COMPARED, read, SMALL_ROWS)
    values = {
        f"small-{query}-ms": statistics.median(each.batch_ms[SETTLE:])
        for query, each in costs.items()
    }
    base = values["small-builtin-ms"]
    ratios = {f"small-{query}": values[f"small-{query}-ms"] / base for query in COMPARED[1:]}
    cpu = {f"small-{query}-cpu-ms": costs[query].cpu_seconds * SMALL_ROWS * MS for query in costs}
    return {**values, **ratios, **cpu}


def scaling(turn: Turn) -> Values:
    """Batches of more and more rows: what a row adds to a batch when there are ten times as many
    should be the same."""
    values = {}
    for rows, batches in SCALED.items():
        if rows <= turn.scale.most_scaled:
            read = filled(turn, "100", PARTITIONS["warm"], rows * batches)
            with warm_session(ENGINES["narrow"], turn.scratch.parent) as session:
                found = cost(turn, session, "narrow", read, rows_a_batch(read, batches))
            values[f"scale-{rows}-ms"] = statistics.median(found.batch_ms)
    least, large = values["scale-10-ms"], values["scale-100000-ms"]
    if "scale-1000000-ms" in values:
        values["scale"] = (values["scale-1000000-ms"] - least) / (large - least) / 10
    return values


def warm_up(turn: Turn) -> None:
    """What a JVM needs before it shows what it can do; all get it."""
    for size in SIZES:
        for _ in range(turn.scale.warm_ups):
            warm(turn, "warm", size)


MEASURES: Final = (
    *(Measure(f"warm-{size}", partial(warm, kind="warm", size=size)) for size in SIZES),
    *(Measure(f"wide-{size}", partial(warm, kind="wide", size=size)) for size in SIZES),
    Measure("small", small),
    Measure("scaling", scaling),
    *(Measure(f"fresh-{size}", partial(fresh, size=size)) for size in SIZES),
)
