"""What `bench.flink` measures, what is compared, and the goals.

`SQL` is Flink copying a topic, `Python` the same with a pandas function in the middle. Ours by the
side of SQL are narrow (rows stay in their partition) and by key (with a shuffle); by the side of
Python it is an Arrow pipeline with a function that does the same. CPU is what the engine, JVM and
workers, used for one row.
"""

from __future__ import annotations

from typing import Final

from bench.common.report import Catalogue, Goal, Metric, compare
from bench.flink.measures import FLINK, FRESH, QUERIES
from bench.spark.measures import SIZES
from bench.spark.report import SIZE_TITLES

NAMES: Final = {
    "sql": "Flink SQL",
    "udf": "Flink Python",
    "narrow": "narrow",
    "key": "by key",
    "upper": "Arrow",
}
KINDS: Final = {"warm": "steady", "fresh": "with start-up"}


def metrics_of(kind: str, size: str, query: str) -> dict[str, Metric]:
    name, title = f"{kind}-{size}-{query}", f"{NAMES[query]} {SIZE_TITLES[size]}"
    whole = f"{title}, {KINDS[kind]}"
    found = {f"{name}-rate": Metric(whole, "k/s", per=1000, bytes_each=SIZES[size])}
    if kind == "warm":
        found[f"{name}-us"] = Metric(f"{title}: CPU", "us", False, 2)
        found[f"{name}-first"] = Metric(f"{title}: first commit", "s", False, 2)
    if query in FLINK:
        theirs = NAMES[FLINK[query]]
        found[name] = Metric(f"{whole} : {theirs}", "x", decimals=2)
        if kind == "warm":
            found[f"{name}-cpu"] = Metric(f"{title} : {theirs}, by CPU", "x", decimals=2)
    return found


METRICS: Final = {
    metric: title
    for kind, queries in {"warm": QUERIES, "fresh": FRESH}.items()
    for size in SIZES
    for query in queries
    for metric, title in metrics_of(kind, size, query).items()
}
AHEAD: Final = Goal(1.0)
GOALS: Final[dict[str, Goal | None]] = {
    **{f"warm-{size}-{query}": AHEAD for query in ("narrow", "upper") for size in SIZES},
    **dict.fromkeys(f"warm-{size}-key" for size in SIZES),
    **{f"fresh-{size}-{query}": AHEAD for query in ("narrow", "upper") for size in SIZES},
    **dict.fromkeys(f"warm-{size}-{query}-cpu" for query in FLINK for size in SIZES),
}

CATALOGUE: Final = Catalogue(
    "Topic to topic, exactly once: times faster than Flink",
    METRICS,
    compare("kafka", "", GOALS),
    {("kafka", ""): "Exactly once, against Flink exactly once"},
)
