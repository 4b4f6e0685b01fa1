"""What `bench.transactions` measures, what is compared, and the goals."""

from __future__ import annotations

from typing import Final

from bench.common.report import Catalogue, Goal, Metric, compare
from bench.transactions.measures import COMMIT_MS, COUNTED

METRICS: Final = {
    "one": Metric("one-record transactions", "/s"),
    "one-p50": Metric("one-record transaction p50", "ms", False, 2),
    "one-p99": Metric("one-record transaction p99", "ms", False, 2),
    "one-cpu": Metric("broker CPU, a transaction", "us", False),
    "one-log-bytes": Metric("log bytes, a transaction", "B", False),
    "plain-rate": Metric("1 KB, acks=all", "k/s", per=1000, bytes_each=1024),
    "in-order-rate": Metric("1 KB, one request in flight", "k/s", per=1000, bytes_each=1024),
    "idempotent-rate": Metric("1 KB, idempotent", "k/s", per=1000, bytes_each=1024),
    **{
        f"commit-{each}-rate": Metric(
            f"1 KB, commits every {each} ms", "k/s", per=1000, bytes_each=1024
        )
        for each in COMMIT_MS
    },
    **{
        f"commits-{each}": Metric(f"commits a second, every {each} ms", "/s", decimals=1)
        for each in COMMIT_MS
    },
    "idempotent": Metric("idempotent : acks=all", "x", decimals=2),
    "in-order": Metric("one request in flight : acks=all", "x", decimals=2),
    **{
        f"commit-{each}": Metric(f"commits every {each} ms : acks=all", "x", decimals=2)
        for each in COMMIT_MS
    },
    "commit-100-in-order": Metric("100 ms : one request in flight", "x", decimals=2),
    "java-plain-rate": Metric("Java 1 KB, acks=all", "k/s", per=1000, bytes_each=1024),
    "java-commit-rate": Metric("Java 1 KB, commits every 100 ms", "k/s", per=1000, bytes_each=1024),
    "java-idempotent": Metric("Java: idempotent : acks=all", "x", decimals=2),
    "java-commit": Metric("Java: every 100 ms : acks=all", "x", decimals=2),
    "read-uncommitted-rate": Metric("read_uncommitted 1 KB", "k/s", per=1000, bytes_each=1024),
    "read-committed-rate": Metric("read_committed 1 KB", "k/s", per=1000, bytes_each=1024),
    "read-committed": Metric("read_committed : read_uncommitted", "x", decimals=2),
    "count-requests": Metric("requests, a transaction", "", False, 2),
    **{f"count-{name}": Metric(f"... {name}", "", False, 2) for name in COUNTED},
    "count-groups": Metric("journal groups, a transaction", "", False, 2),
    "count-bytes": Metric("journal bytes, a transaction", "B", False),
    "new-id": Metric("transaction of a new id p50", "ms", False, 2),
    "crowded": Metric("new id beside 10,000 : alone, p50", "x", False, 2),
    "crowded-cpu": Metric("new id beside 10,000 : alone, CPU", "x", False, 2),
}
RATES: Final = (
    "idempotent-rate",
    "commit-10-rate",
    "commit-100-rate",
    "commit-1000-rate",
    "java-commit-rate",
)
READS: Final = ("read-uncommitted-rate", "read-committed-rate")
COSTS: Final[dict[str, Goal | None]] = {
    **{f"commit-{each}": None for each in COMMIT_MS},
    # How the articles' baseline kept its order.
    "commit-100-in-order": None,
    # What the articles promise: 3 %, and nothing.
    "commit-100": Goal(0.97),
    "java-commit": Goal(0.97),
    "idempotent": Goal(1.0),
    "java-idempotent": Goal(1.0),
    "read-committed": Goal(1.0),
}

CATALOGUE: Final = Catalogue(
    "Transactions: times better",
    METRICS,
    (
        *compare(
            "ours-fsync",
            "kafka",
            {
                "one": Goal(1.7),
                "one-p99": Goal(0.3),
                **dict.fromkeys(("one-p50", "one-cpu", "one-log-bytes", *RATES, *READS)),
            },
        ),
        *compare(
            "ours-fsync",
            "kafka-flush",
            dict.fromkeys(("one", "one-p99", "one-p50", "one-cpu", "one-log-bytes", *RATES)),
        ),
        *compare(
            "ours-fsync",
            "",
            {
                **COSTS,
                "crowded": Goal(1.1),
                "crowded-cpu": Goal(1.1),
                # Two, and now and then one that the broker writes for itself.
                "count-groups": Goal(2.01),
                **dict.fromkeys(("count-requests", "count-bytes")),
            },
        ),
        *compare("kafka", "", COSTS),
        *compare("kafka-flush", "", COSTS),
    ),
    {
        ("ours-fsync", "kafka"): "Onceflow, synced, against Apache Kafka's default, unsynced",
        ("ours-fsync", "kafka-flush"): "Onceflow against Apache Kafka flushing every message",
        ("ours-fsync", ""): "What transactions leave of the speed: Onceflow, synced",
        ("kafka", ""): "What transactions leave of the speed: Apache Kafka's default",
        ("kafka-flush", ""): "What transactions leave of the speed: Apache Kafka flushing",
    },
)
