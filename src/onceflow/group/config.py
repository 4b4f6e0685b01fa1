"""The settings of groups, under Kafka's names and with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Limits and delays of the group coordinator."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2_147_483_647
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
