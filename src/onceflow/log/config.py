"""Settings of one partition log; names and defaults are those of Kafka's topic configs."""

from __future__ import annotations

from dataclasses import dataclass

from onceflow.errors import InvalidSetting

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

    def __post_init__(self) -> None:
        for name, lowest, highest in (
            ("segment_bytes", 14, 2**31 - 1),  # positions in the index are 32 bits wide
            ("segment_ms", 1, 2**63 - 1),
            ("segment_index_bytes", 8, 2**31 - 1),
            ("index_interval_bytes", 0, 2**31 - 1),
            ("retention_ms", -1, 2**63 - 1),
            ("retention_bytes", -1, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise InvalidSetting(f"{name} is {value}; allowed is {lowest} to {highest}")
