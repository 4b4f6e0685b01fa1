"""What `bench.session` measures, what is compared, and the goals."""

from __future__ import annotations

from typing import Final

from bench.common.report import Catalogue, Goal, Metric, compare
from bench.session.measures import BATCHES, READY, RECORD_BYTES, TABLES

NAMES: Final = {"onceflow": "Onceflow", "aiokafka": "aiokafka", READY: "next to nothing"}


TITLES: Final = {
    **{f"session-{each}": f"{each} record{'s' if each > 1 else ''}" for each in BATCHES},
    "session-tables": f"{TABLES}, ours as tables",
}


def metrics_of(name: str, title: str) -> dict[str, Metric]:
    found = {}
    for client, who in NAMES.items():
        told = f"transactions of {title}: {who}"
        found[f"{name}-{client}-rate"] = Metric(
            f"{told}, records", "k/s", per=1000, decimals=2, bytes_each=RECORD_BYTES
        )
        found[f"{name}-{client}-us"] = Metric(f"{told}, CPU of a record", "us", False, 2)
    found[name] = Metric(f"transactions of {title} : aiokafka", "x", decimals=2)
    found[f"{name}-cpu"] = Metric(f"of {title} : aiokafka, by CPU", "x", decimals=2)
    ceiling = f"of {title} : aiokafka, by a client that does next to nothing"
    found[f"{name}-ceiling"] = Metric(ceiling, "x", decimals=2)
    return found


METRICS: Final = {
    metric: kind
    for name, title in TITLES.items()
    for metric, kind in metrics_of(name, title).items()
}
GOALS: Final[dict[str, Goal | None]] = {
    **dict.fromkeys(TITLES, Goal(3.0)),
    **dict.fromkeys(f"{name}-cpu" for name in TITLES),
    **dict.fromkeys(f"{name}-ceiling" for name in TITLES),
}
CATALOGUE: Final = Catalogue(
    "A session: times better than the same loop, on the same broker",
    METRICS,
    (*compare("ours-os", "", GOALS), *compare("kafka", "", GOALS)),
    {
        ("ours-os", ""): "On Onceflow's broker, not synced",
        ("kafka", ""): "On Apache Kafka",
    },
)
