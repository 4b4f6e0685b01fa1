"""What `bench.headlines` measures, and what is compared: no goals, which the other benches have."""

from __future__ import annotations

from typing import Final

from bench.broker import report as broker_report
from bench.client import report as client_report
from bench.common.report import Catalogue, Metric, compare
from bench.headlines.measures import SESSION_RECORDS
from bench.session import report as session_report
from bench.transactions import report as transactions_report

SESSION: Final = f"session-{SESSION_RECORDS}"
PRODUCED: Final = {
    f"produce-{kind}": Metric(f"produce {title}", "k/s", per=1000, bytes_each=record_bytes)
    for kind, title, record_bytes in (
        ("unlimited", "1 KB, unlimited in flight", 1024),
        ("five", "1 KB, five in flight", 1024),
        ("idempotent", "1 KB, idempotent", 1024),
        ("transactional", "1 KB, commits every 100 ms", 1024),
        ("five-100", "100 B, five in flight", 100),
        ("idempotent-100", "100 B, idempotent", 100),
        ("transactional-100", "100 B, commits every 100 ms", 100),
    )
}
"""All with acks=all, by librdkafka on one connection, to eight partitions."""
SHARES: Final = {
    f"{ours}-to-{theirs}{suffix}": Metric(f"{ours} : {said}, {size}", "x", decimals=2)
    for suffix, size in (("", "1 KB"), ("-100", "100 B"))
    for ours, theirs, said in (
        ("idempotent", "five", "five in flight"),
        ("transactional", "idempotent", "idempotent"),
    )
}
READS: Final = ("read-uncommitted-rate", "read-committed-rate")
ONE: Final = ("one", "one-p99")
LATENCY: Final = ("latency-p50", "latency-librdkafka-p50")
CLIENT: Final = ("send-1k", "send-1k-cpu", "records-1k", "records-1k-cpu")
SESSIONS: Final = (SESSION, f"{SESSION}-cpu")
SYNCED: Final = dict.fromkeys((*PRODUCED, *ONE, *LATENCY, "growth"))
"""What syncing has to do with."""

METRICS: Final = {
    **PRODUCED,
    **SHARES,
    **{name: transactions_report.METRICS[name] for name in (*READS, *ONE)},
    **{name: broker_report.METRICS[name] for name in (*LATENCY, "growth")},
    **{name: client_report.METRICS[name] for name in CLIENT},
    **{name: session_report.METRICS[name] for name in SESSIONS},
}
CATALOGUE: Final = Catalogue(
    "Headlines: times as much as Apache Kafka, or as another client",
    METRICS,
    (
        *compare("ours-os", "kafka", dict.fromkeys((*PRODUCED, *READS, *ONE, *LATENCY, "growth"))),
        *compare("ours-fsync", "kafka-flush", SYNCED),
        *compare("ours-fsync", "kafka", SYNCED),
        *compare("ours-os", "", dict.fromkeys((*SHARES, *CLIENT, *SESSIONS))),
        *compare("ours-fsync", "", dict.fromkeys(SHARES)),
        *compare("kafka", "", dict.fromkeys((*CLIENT, *SESSIONS))),
    ),
    {
        ("ours-os", "kafka"): "Onceflow, unsynced, against Apache Kafka's default, unsynced",
        ("ours-fsync", "kafka-flush"): "Onceflow, synced, against Apache Kafka flushing",
        ("ours-fsync", "kafka"): "Onceflow, synced, against Apache Kafka's default, unsynced",
        ("ours-os", ""): "On Onceflow, unsynced: one kind of producer or client against another",
        ("ours-fsync", ""): "On Onceflow, synced: one kind of producer against another",
        ("kafka", ""): "On Apache Kafka: one client against another",
    },
)
