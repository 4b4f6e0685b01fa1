"""Settings of one partition log; names and defaults are those of Kafka's topic configs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from onceflow.errors import InvalidSetting

DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS
NO_LIMIT_MS = 2**63 - 1


class LogLayout(NamedTuple):
    """The part of a config that decides where a log is cut into files: a replay needs it."""

    segment_bytes: int
    roll_ms: int
    segment_index_bytes: int
    index_interval_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """`-1` means without limit."""

    segment_bytes: int = 1 << 30
    segment_ms: int = WEEK_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = WEEK_MS
    retention_bytes: int = -1
    delete: bool = True
    """Old segments go, as `retention_ms` and `retention_bytes` say (cleanup.policy=delete)."""
    compact: bool = False
    """Of each key only the latest record stays (cleanup.policy=compact)."""
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NO_LIMIT_MS

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is closed: records of an active one are never compacted."""
        if self.compact:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def layout(self) -> LogLayout:
        return LogLayout(
            self.segment_bytes, self.roll_ms, self.segment_index_bytes, self.index_interval_bytes
        )

    def laid_out(self, layout: LogLayout) -> LogConfig:
        """The same but for the layout."""
        return replace(
            self,
            segment_bytes=layout.segment_bytes,
            segment_ms=layout.roll_ms,
            segment_index_bytes=layout.segment_index_bytes,
            index_interval_bytes=layout.index_interval_bytes,
        )

    def __post_init__(self) -> None:
        for name, lowest, highest in (
            ("segment_bytes", 14, 2**31 - 1),  # positions in the index are 32 bits wide
            ("segment_ms", 1, NO_LIMIT_MS),
            ("segment_index_bytes", 8, 2**31 - 1),
            ("index_interval_bytes", 0, 2**31 - 1),
            ("retention_ms", -1, NO_LIMIT_MS),
            ("retention_bytes", -1, 2**63 - 1),
            ("delete_retention_ms", 0, NO_LIMIT_MS),
            ("min_cleanable_dirty_ratio", 0, 1),
            ("min_compaction_lag_ms", 0, NO_LIMIT_MS),
            ("max_compaction_lag_ms", 1, NO_LIMIT_MS),
        ):
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise InvalidSetting(f"{name} is {value}; allowed is {lowest} to {highest}")
