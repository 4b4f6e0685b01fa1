"""Settings of one partition log; names and defaults are those of Kafka's topic configs."""

from __future__ import annotations

from dataclasses import dataclass

WEEK_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """`-1` means without limit."""

    segment_bytes: int = 1 << 30
    segment_ms: int = WEEK_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = WEEK_MS
    retention_bytes: int = -1
