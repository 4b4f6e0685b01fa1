"""What `bench.spark` measures, what is compared, and the goals.

`built-in` is Spark's own Kafka connector, at least once; `foreachPartition` is its source with a
producer of confluent-kafka in each task. CPU is what the engine, JVM and workers, used for one row.
"""

from __future__ import annotations

from typing import Final

from bench.common.report import Catalogue, Goal, Metric, compare
from bench.spark.measures import COMPARED, FRESH, PARTITIONS, SCALED, SIZES, SMALL_ROWS

SIZE_TITLES: Final = {"100": "100 B", "1k": "1 KB"}
NAMES: Final = {
    "builtin": "built-in",
    "foreach": "foreachPartition",
    "narrow": "narrow",
    "key": "by key",
    "arrow": "Arrow",
}
QUERIES: Final = {"warm": (*COMPARED, "foreach"), "wide": COMPARED, "fresh": FRESH}
OURS: Final = ("narrow", "key", "arrow")


def metrics_of(kind: str, size: str, query: str) -> dict[str, Metric]:
    name = f"{kind}-{size}-{query}"
    where = f"{PARTITIONS[kind]}p" if kind != "fresh" else "fresh"
    title = f"{NAMES[query]} {SIZE_TITLES[size]}, {where}"
    found = {
        f"{name}-rate": Metric(title, "k/s", per=1000, bytes_each=SIZES[size]),
        f"{name}-us": Metric(f"{title}: CPU", "us", False, 2),
        f"{name}-broker": Metric(f"{title}: broker CPU", "s/GB", False, 1),
        f"{name}-first": Metric(f"{title}: first batch", "s", False, 2),
    }
    if query != "builtin":
        found[name] = Metric(f"{title} : built-in", "x", decimals=2)
        found[f"{name}-cpu"] = Metric(f"{title} : built-in, by CPU", "x", decimals=2)
        share = f"{title} : built-in, broker CPU"
        found[f"{name}-broker-share"] = Metric(share, "x", False, 2)
    return found


METRICS: Final = {
    metric: title
    for kind, queries in QUERIES.items()
    for size in SIZES
    for query in queries
    for metric, title in metrics_of(kind, size, query).items()
} | {
    **{
        f"small-{query}-ms": Metric(f"{SMALL_ROWS}-row batch: {NAMES[query]}", "ms", False)
        for query in COMPARED
    },
    **{
        f"small-{query}-cpu-ms": Metric(f"{SMALL_ROWS}-row batch: {NAMES[query]}, CPU", "ms", False)
        for query in COMPARED
    },
    **{
        f"small-{query}": Metric(
            f"{SMALL_ROWS}-row batch: {NAMES[query]} : built-in", "x", False, 2
        )
        for query in OURS
    },
    **{f"scale-{rows}-ms": Metric(f"narrow, {rows:,} rows", "ms", False) for rows in SCALED},
    "scale": Metric("a row of 1,000,000 : of 100,000", "x", False, 2),
}

RATES: Final = {"narrow": (2.0, 1.5), "key": (1.3, 1.0), "arrow": (3.0, 2.5)}
"""At 100 B and at 1 KB."""
BROKER_SHARE: Final = 0.6
GOALS: Final[dict[str, Goal | None]] = {
    **{
        f"warm-{size}-{query}": Goal(limit)
        for query, limits in RATES.items()
        for size, limit in zip(SIZES, limits, strict=True)
    },
    **dict.fromkeys(f"warm-{size}-foreach" for size in SIZES),
    **dict.fromkeys(f"warm-{size}-{query}-cpu" for query in OURS for size in SIZES),
    **{f"warm-{size}-{query}-broker-share": Goal(BROKER_SHARE) for query in OURS for size in SIZES},
    **{
        f"wide-{size}-{query}": Goal(limit)
        for query, limits in RATES.items()
        for size, limit in zip(SIZES, limits, strict=True)
    },
    **dict.fromkeys(f"wide-{size}-{query}-cpu" for query in OURS for size in SIZES),
    **dict.fromkeys(f"fresh-{size}-{query}" for query in FRESH[1:] for size in SIZES),
    **{f"small-{query}": Goal(1.8) for query in OURS},
    "scale": Goal(1.2),
}

CATALOGUE: Final = Catalogue(
    "Spark, topic to topic: times better than its own connector",
    METRICS,
    compare("kafka", "", GOALS),
    {("kafka", ""): "Exactly once, against Spark's own connector at least once"},
)
