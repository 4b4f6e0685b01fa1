"""What `bench.broker` measures, what is compared, and the goals."""

from __future__ import annotations

from typing import Final

from bench.common.report import Catalogue, Comparison, Goal, Metric, compare

METRICS: Final = {
    "produce-1k": Metric("produce 1 KB", "k/s", per=1000, bytes_each=1024),
    "produce-100": Metric("produce 100 B", "k/s", per=1000, bytes_each=100),
    "produce-large-1k": Metric("produce 1 KB, 1 MB batches", "k/s", per=1000, bytes_each=1024),
    "produce-large-100": Metric("produce 100 B, 1 MB batches", "k/s", per=1000, bytes_each=100),
    "java-1k": Metric("Java produce 1 KB", "k/s", per=1000, bytes_each=1024),
    "java-100": Metric("Java produce 100 B", "k/s", per=1000, bytes_each=100),
    "consume-1k": Metric("consume 1 KB", "k/s", per=1000, bytes_each=1024),
    "consume-100": Metric("consume 100 B", "k/s", per=1000, bytes_each=100),
    "cpu-1k": Metric("broker CPU, in and out, 1 KB", "s/GB", False, 2),
    "cpu-100": Metric("broker CPU, in and out, 100 B", "s/GB", False, 2),
    "cpu-produce-1k": Metric("broker CPU, produce 1 KB", "s/GB", False, 2),
    "cpu-produce-100": Metric("broker CPU, produce 100 B", "s/GB", False, 2),
    "cpu-consume-1k": Metric("broker CPU, consume 1 KB", "s/GB", False, 2),
    "cpu-consume-100": Metric("broker CPU, consume 100 B", "s/GB", False, 2),
    "latency-p50": Metric("acked latency p50, socket", "ms", False, 3),
    "latency-p99": Metric("acked latency p99, socket", "ms", False, 3),
    "latency-librdkafka-p50": Metric("acked latency p50, librdkafka", "ms", False, 3),
    "latency-librdkafka-p99": Metric("acked latency p99, librdkafka", "ms", False, 3),
    "growth": Metric("50 connections x 200 partitions", "k/s", decimals=1, per=1000),
    "busy": Metric("20 busy connections", "k/s", decimals=1, per=1000),
    "idle": Metric("rate kept beside 500 idle ones", "x", decimals=2),
    "start-empty": Metric("start, empty directory", "s", False, 2),
    "start": Metric("start to first connection", "s", False, 2),
    "start-answer": Metric("start to first answer", "s", False, 2),
    "memory": Metric("resident, 100 partitions", "MB", False),
}
PRODUCE: Final = tuple(name for name in METRICS if name.startswith(("produce", "java")))
CONSUME: Final = tuple(name for name in METRICS if name.startswith("consume"))
CPU: Final = tuple(name for name in METRICS if name.startswith("cpu"))
P50: Final = ("latency-p50", "latency-librdkafka-p50")

COMPARISONS: Final = (
    *compare(
        "ours-os",
        "kafka",
        {
            **dict.fromkeys((*PRODUCE, *CONSUME), Goal(1.0)),
            **dict.fromkeys(CPU, Goal(0.6)),
            **dict.fromkeys((*P50, "growth", "start", "memory")),
        },
    ),
    *compare(
        "ours-fsync",
        "kafka-flush",
        {
            **dict.fromkeys(PRODUCE, Goal(2.0)),
            **dict.fromkeys(P50, Goal(0.8)),
            "growth": Goal(1.0),
            **dict.fromkeys((*CONSUME, *CPU)),
        },
    ),
    *compare(
        "ours-fsync",
        "kafka",
        {
            **dict.fromkeys(PRODUCE, Goal(1.0, is_dream=True)),
            "growth": Goal(1.0),
            **dict.fromkeys((*P50, "start", "memory")),
        },
    ),
    *(
        Comparison(ours, "", metric, Goal(limit))
        for ours in ("ours-fsync", "ours-os")
        for metric, limit in (("start", 0.4), ("start-empty", 0.4), ("memory", 250), ("idle", 0.9))
    ),
)
CATALOGUE: Final = Catalogue(
    "Times better than Apache Kafka",
    METRICS,
    COMPARISONS,
    {
        (
            "ours-os",
            "kafka",
        ): 'Not synced: Onceflow with durability "os" against Apache Kafka\'s default',
        (
            "ours-fsync",
            "kafka-flush",
        ): "Synced: Onceflow against Apache Kafka flushing every message",
        ("ours-fsync", "kafka"): "Synced against unsynced: Onceflow against Apache Kafka's default",
    },
)
