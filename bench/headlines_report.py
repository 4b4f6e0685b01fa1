"""What `bench.headlines` measures, and what is compared: no goals, which the other benches have."""

from __future__ import annotations

from typing import Final

from bench import broker_report, client_report, session_report, transactions_report
from bench.headlines_measures import SESSION_RECORDS
from bench.report import Catalogue, Metric, compare

SESSION: Final = f"session-{SESSION_RECORDS}"
PRODUCED: Final = {
    "produce-unlimited": Metric(
        "1 KB, acks=all, unlimited in flight", "k/s", per=1000, bytes_each=1024
    ),
    "produce-five": Metric("1 KB, acks=all, five in flight", "k/s", per=1000, bytes_each=1024),
    "produce-idempotent": Metric("1 KB, idempotent", "k/s", per=1000, bytes_each=1024),
    "produce-transactional": Metric(
        "1 KB, transactional, 100 ms commits", "k/s", per=1000, bytes_each=1024
    ),
    "produce-idempotent-100": Metric("100 B, idempotent", "k/s", per=1000, bytes_each=100),
}
SHARES: Final = {
    "idempotent-to-five": Metric("idempotent : acks=all, five in flight", "x", decimals=2),
    "transactional-to-idempotent": Metric("transactional : idempotent", "x", decimals=2),
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
        *compare("kafka", "", dict.fromkeys((*SHARES, *CLIENT, *SESSIONS))),
    ),
    {
        ("ours-os", "kafka"): "Onceflow, unsynced, against Apache Kafka's default, unsynced",
        ("ours-fsync", "kafka-flush"): "Onceflow, synced, against Apache Kafka flushing",
        ("ours-fsync", "kafka"): "Onceflow, synced, against Apache Kafka's default, unsynced",
        ("ours-os", ""): "On Onceflow, unsynced: one kind of producer or client against another",
        ("ours-fsync", ""): "On Onceflow, synced: one kind of producer against another",
        ("kafka", ""): "On Apache Kafka: one kind of producer or client against another",
    },
)
