"""The logs in which the broker keeps its own state, and the policy of each.

A policy is fixed: no default of the broker and no config that is stored beside a topic can change
it. Retention must never touch these logs, whatever their age: their records are the only ones that
say which topics there are, which offsets were committed and which transactions are open. They are
compacted instead, so that of each key the latest record stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from onceflow.log import DAY_MS, LogConfig

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"

_COMPACTED: Final = {
    "cleanup.policy": "compact",
    # A start reads all of it, and only what is sealed is compacted: less than Kafka's 100 MiB.
    "segment.bytes": "16777216",
}

POLICIES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        OFFSETS_TOPIC: {**_COMPACTED, "compression.type": "producer"},
        TRANSACTIONS_TOPIC: {
            **_COMPACTED,
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
        },
    }
)
"""The whole config of each internal topic: what is not named here is Kafka's default."""

METADATA_POLICY: Final = LogConfig(
    delete=False,
    retention_ms=-1,
    compact=True,
    # It is small and every start reads it: two starts that rewrite it are worth a compaction.
    segment_bytes=1 << 20,
    # The record that says that a topic is gone explains logs which outlive a deletion that was cut
    # off. Without it the next start takes them for logs whose topic was lost, and refuses.
    delete_retention_ms=30 * DAY_MS,
)
"""Of `__cluster_metadata`, which is no topic."""
