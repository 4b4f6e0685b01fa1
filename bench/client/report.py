"""What `bench.client` measures, what is compared, and the goals.

`confluent` is confluent-kafka. CPU is what the client's process used for one record.
"""

from __future__ import annotations

from typing import Final

from bench.client.measures import SIZES
from bench.common.report import Catalogue, Goal, Metric, compare

SIZE_TITLES: Final = {"1k": "1 KB", "100": "100 B"}
NAMES: Final = {"onceflow": "Onceflow", "aiokafka": "aiokafka", "confluent": "confluent"}

WORK: Final = {
    **{f"send-{size}": (f"send {SIZE_TITLES[size]}", "aiokafka", size) for size in SIZES},
    "keyed-100": ("send with key 100 B", "aiokafka", "100"),
    **{f"table-{size}": (f"send_table {SIZE_TITLES[size]}", "confluent", size) for size in SIZES},
    **{f"read-{size}": (f"poll_table {SIZE_TITLES[size]}", "confluent", size) for size in SIZES},
    **{f"records-{size}": (f"poll {SIZE_TITLES[size]}", "aiokafka", size) for size in SIZES},
}
"""What is done, whom it is compared with, and the size of a record."""


def metrics_of(name: str, title: str, theirs: str, size: str) -> dict[str, Metric]:
    found = {}
    for client in ("onceflow", theirs):
        who = f"{title}: {NAMES[client]}"
        found[f"{name}-{client}-rate"] = Metric(who, "k/s", per=1000, bytes_each=SIZES[size])
        found[f"{name}-{client}-us"] = Metric(f"{who}, CPU", "us", False, 2)
    found[name] = Metric(f"{title} : {NAMES[theirs]}", "x", decimals=2)
    found[f"{name}-cpu"] = Metric(f"{title} : {NAMES[theirs]}, by CPU", "x", decimals=2)
    return found


METRICS: Final = {
    metric: kind
    for name, (title, theirs, size) in WORK.items()
    for metric, kind in metrics_of(name, title, theirs, size).items()
} | {
    "one-onceflow-rate": Metric("transactions: Onceflow", "/s"),
    "one-aiokafka-rate": Metric("transactions: aiokafka", "/s"),
    "one-confluent-rate": Metric("transactions: confluent", "/s"),
    "one-onceflow-us": Metric("transaction: Onceflow, CPU", "us", False),
    "one-aiokafka-us": Metric("transaction: aiokafka, CPU", "us", False),
    "one": Metric("transactions : aiokafka", "x", decimals=2),
    "one-cpu": Metric("transactions : aiokafka, by CPU", "x", decimals=2),
    "one-confluent": Metric("transactions : confluent", "x", decimals=2),
    "import-bare": Metric("a Python that imports nothing", "ms", False),
    "import-asyncio": Metric("import asyncio", "ms", False),
    "import-producer": Metric("import onceflow.client.producer.producer", "ms", False),
    "import-fetcher": Metric("import onceflow.client.consumer.fetcher", "ms", False),
    "import-admin": Metric("import onceflow.client.admin.admin", "ms", False),
    "import-aiokafka": Metric("import aiokafka", "ms", False),
    "import-confluent": Metric("import confluent_kafka", "ms", False),
    "import": Metric("import : aiokafka", "x", decimals=2),
}

GOALS: Final[dict[str, Goal | None]] = {
    **{f"send-{size}": Goal(2.0) for size in SIZES},
    "keyed-100": None,
    **{f"table-{size}": Goal(1.5) for size in SIZES},
    **{f"read-{size}": Goal(1.5) for size in SIZES},
    **{f"records-{size}": Goal(2.0) for size in SIZES},
    "one": Goal(4.0),
    "one-confluent": None,
    **dict.fromkeys(f"{name}-cpu" for name in WORK),
    "one-cpu": None,
}
ON_OURS: Final[dict[str, Goal | None]] = {
    **GOALS,
    # The 40 to 50 a second of aiokafka, of which four times as many are wanted, are what Apache
    # Kafka makes it wait for; on our broker it waits for nothing, and makes 500.
    "one": None,
}
IMPORT_GOALS: Final[dict[str, Goal | None]] = {
    "import": None,
    **{f"import-{name}": Goal(150) for name in ("producer", "fetcher", "admin")},
}

CATALOGUE: Final = Catalogue(
    "The client: times better, on the same broker",
    METRICS,
    (
        *compare("ours-os", "", {**ON_OURS, **IMPORT_GOALS}),
        *compare("kafka", "", GOALS),
    ),
    {
        ("ours-os", ""): "On Onceflow's broker, not synced",
        ("kafka", ""): "On Apache Kafka",
    },
)
