"""The settings of a consumer, under Kafka's own names and with Kafka's defaults, except that
`isolation.level` is `read_committed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from onceflow.client.assignors import ASSIGNORS, Assignor
from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.settings.rules import RawSettings
from onceflow.client.settings.values import (
    NotAllowed,
    one_of,
    setting,
    whole_number,
    words,
    yes_or_no,
)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NONE: Final = "none"
RAISE: Final = "raise"
RESET: Final = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings(ReaderSettings):
    """The settings of a `Fetcher`, which reads on by itself: those of a reader, and these."""

    auto_offset_reset: str = setting(one_of(EARLIEST, LATEST, NONE), LATEST)
    """Where to read when there is no position, or one that the log does not hold."""
    on_log_truncation: str = setting(one_of(RAISE, RESET), RAISE)
    """When records that were read are gone from the log of a new leader: `raise` says so, `reset`
    logs it and goes on from the last offset that the logs have in common."""
    fetch_queued_max_bytes: int = setting(whole_number(1), 67_108_864)
    """How much may be fetched ahead of the reader, one answer more or less."""


AT_MOST_ONCE: Final = "at-most-once"
AT_LEAST_ONCE: Final = "at-least-once"
_COMMITS_BY_ITSELF: Final[Mapping[str, bool]] = {AT_MOST_ONCE: False, AT_LEAST_ONCE: True}


def strategies(value: object) -> tuple[str, ...]:
    """Names of assignors, separated by commas or in a list; the first one that all members of a
    group know is used."""
    given = value.split(",") if isinstance(value, str) else value
    if isinstance(given, list | tuple):
        names = tuple(each.strip() for each in given if isinstance(each, str))
        if names and len(set(names)) == len(given) and all(each in ASSIGNORS for each in names):
            return names
    raise NotAllowed("one or several of " + ", ".join(ASSIGNORS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(FetcherSettings):
    """Those of a fetcher, and these."""

    group_id: str | None = setting(words, None)
    group_instance_id: str | None = setting(words, None)
    """Makes a static member: it keeps what it was given while it is away for less than
    `session.timeout.ms`."""
    delivery: str | None = setting(one_of(*_COMMITS_BY_ITSELF), None)
    """`at-most-once` commits records before they are handed out, `at-least-once` when the next ones
    are asked for; None leaves it to `enable.auto.commit`."""
    enable_auto_commit: bool = setting(yes_or_no, True)
    auto_commit_interval_ms: int = setting(whole_number(0), 5_000)
    max_poll_records: int = setting(whole_number(1), 500)
    max_poll_interval_ms: int = setting(whole_number(1), 300_000)
    session_timeout_ms: int = setting(whole_number(1), 45_000)
    heartbeat_interval_ms: int = setting(whole_number(1), 3_000)
    partition_assignment_strategy: tuple[str, ...] = setting(
        strategies, ("range", "cooperative-sticky")
    )
    allow_auto_create_topics: bool = setting(yes_or_no, True)
    """Whether subscribing to a topic that is not there lets brokers create it that do so
    (`auto.create.topics.enable`)."""
    exclude_internal_topics: bool = setting(yes_or_no, True)
    """Whether a pattern passes over topics that the cluster uses itself."""

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
