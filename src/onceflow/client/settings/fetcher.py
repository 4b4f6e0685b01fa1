"""What a `Fetcher` can be told, under Kafka's own names where Kafka has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.settings.values import one_of, setting, whole_number

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NONE: Final = "none"
RAISE: Final = "raise"
RESET: Final = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings(ReaderSettings):
    """What a reader that goes on by itself has besides."""

    auto_offset_reset: str = setting(one_of(EARLIEST, LATEST, NONE), LATEST)
    """Where to read when there is no position, or one that the log does not hold."""
    on_log_truncation: str = setting(one_of(RAISE, RESET), RAISE)
    """When records that were read are gone from the log of a new leader: `raise` says so, `reset`
    logs it and goes on from the last offset that the logs have in common."""
    fetch_queued_max_bytes: int = setting(whole_number(1), 67_108_864)
    """How much may be fetched ahead of the one who reads, one answer more or less."""
