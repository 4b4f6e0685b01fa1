"""What `bench.session` measures, what is compared, and the goals."""

from __future__ import annotations

from typing import Final

from bench.report import Catalogue, Goal, Metric, compare
from bench.session_measures import BATCHES, RECORD_BYTES

NAMES: Final = {"onceflow": "Onceflow", "aiokafka": "aiokafka"}


def title(batch: int) -> str:
    return "1 record" if batch == 1 else f"{batch} records"


def metrics_of(batch: int) -> dict[str, Metric]:
    found = {}
    name = f"session-{batch}"
    for client, who in NAMES.items():
        told = f"transactions of {title(batch)}: {who}"
        found[f"{name}-{client}-rate"] = Metric(
            f"{told}, records", "k/s", per=1000, decimals=2, bytes_each=RECORD_BYTES
        )
        found[f"{name}-{client}-us"] = Metric(f"{told}, CPU of a record", "us", False, 2)
    found[name] = Metric(f"transactions of {title(batch)} : aiokafka", "x", decimals=2)
    found[f"{name}-cpu"] = Metric(f"of {title(batch)} : aiokafka, by CPU", "x", decimals=2)
    return found


METRICS: Final = {metric: kind for batch in BATCHES for metric, kind in metrics_of(batch).items()}
GOALS: Final[dict[str, Goal | None]] = {
    **{f"session-{batch}": Goal(3.0) for batch in BATCHES},
    **dict.fromkeys(f"session-{batch}-cpu" for batch in BATCHES),
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
