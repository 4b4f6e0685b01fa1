"""The settings of a consumer, under Kafka's own names and with Kafka's defaults, except that
`isolation.level` is `read_committed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from onceflow.client.assignors import ASSIGNORS, Assignor
from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.settings.rules import RawSettings
from onceflow.settings import TEXT, YES_OR_NO, SettingKind, list_of, one_of, setting, whole_number

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NONE: Final = "none"
RAISE: Final = "raise"
RESET: Final = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings(ReaderSettings):
    """The settings of a `Fetcher`, which reads on by itself: those of a reader, and these."""

    auto_offset_reset: str = setting(
        one_of(EARLIEST, LATEST, NONE, any_case=True),
        LATEST,
        "Where to read when there is no position, or one that the log does not hold; none raises.",
    )
    on_log_truncation: str = setting(
        one_of(RAISE, RESET, any_case=True),
        RAISE,
        "When records that were read are gone from the log of a new leader: raise says so, reset "
        "logs it and goes on from the last offset that the logs have in common.",
    )
    fetch_queued_max_bytes: int = setting(
        whole_number(1),
        67_108_864,
        "How much may be fetched ahead of the reader, one answer more or less.",
    )


AT_MOST_ONCE: Final = "at-most-once"
AT_LEAST_ONCE: Final = "at-least-once"
_COMMITS_BY_ITSELF: Final[Mapping[str, bool]] = {AT_MOST_ONCE: False, AT_LEAST_ONCE: True}


_STRATEGIES: Final[SettingKind] = list_of(
    one_of(*ASSIGNORS), f"one or several of {', '.join(ASSIGNORS)}", each_once=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(FetcherSettings):
    """Those of a fetcher, and these."""

    group_id: str | None = setting(
        TEXT,
        None,
        "The group whose members share the partitions, and for which offsets are committed.",
    )
    group_instance_id: str | None = setting(
        TEXT,
        None,
        "Makes a static member: it keeps its partitions while it is away for less than "
        "session.timeout.ms.",
    )
    delivery: str | None = setting(
        one_of(*_COMMITS_BY_ITSELF, any_case=True),
        None,
        "at-most-once commits records before they are handed out, at-least-once when the next ones "
        "are asked for.",
        unset="as enable.auto.commit says",
    )
    enable_auto_commit: bool = setting(
        YES_OR_NO,
        True,
        "Whether records that were handed out are committed when others are asked for; without a "
        "group nothing is.",
    )
    auto_commit_interval_ms: int = setting(
        whole_number(0), 5_000, "The time between two automatic commits."
    )
    max_poll_records: int = setting(whole_number(1), 500, "The most records that one poll gives.")
    max_poll_interval_ms: int = setting(
        whole_number(1), 300_000, "A member that does not poll for so long leaves its group."
    )
    session_timeout_ms: int = setting(
        whole_number(1),
        45_000,
        "A member without heartbeats for so long is removed from its group.",
    )
    heartbeat_interval_ms: int = setting(
        whole_number(1), 3_000, "The time between two heartbeats of a member."
    )
    partition_assignment_strategy: tuple[str, ...] = setting(
        _STRATEGIES,
        ("range", "cooperative-sticky"),
        "How partitions are divided: the first one that all members know is used.",
    )
    allow_auto_create_topics: bool = setting(
        YES_OR_NO,
        True,
        "Whether subscribing to a topic that is not there lets brokers create it that do so "
        "(`auto.create.topics.enable`).",
    )
    exclude_internal_topics: bool = setting(
        YES_OR_NO, True, "Whether a pattern passes over topics that the cluster uses itself."
    )

    @classmethod
    def _completed(cls, given: RawSettings) -> Mapping[str, Any]:
        complete = dict(given)
        commits = _COMMITS_BY_ITSELF.get(given.get("delivery", ""), "group.id" in given)
        complete.setdefault("enable.auto.commit", commits)
        return complete

    @property
    def assignors(self) -> tuple[Assignor, ...]:
        return tuple(ASSIGNORS[name] for name in self.partition_assignment_strategy)

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions may be kept while joining: only if all strategies know how."""
        return all(each.is_cooperative for each in self.assignors)

    @property
    def commits_before(self) -> bool:
        """Whether records are committed before they are handed out."""
        return self.delivery == AT_MOST_ONCE
