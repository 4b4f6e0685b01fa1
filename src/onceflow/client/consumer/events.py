"""What is logged of reading: where it begins, and when it has to begin somewhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onceflow.client.errors import ClientError, LogTruncated
from onceflow.client.events import READING, Names, Recurring
from onceflow.types import TopicPartition


def log_reset_to_policy(partitions: Iterable[TopicPartition], policy: str) -> None:
    """Nothing is committed for these."""
    READING.info(
        "reset",
        "nothing was committed of %(partitions)s: reading begins at the %(to)s",
        partitions=Names.of(sorted(partitions)),
        to=policy,
    )


def log_rewound(places: Mapping[TopicPartition, int]) -> None:
    """Back to these offsets."""
    READING.info(
        "rewound",
        "%(partitions)s: read again from what was committed",
        partitions=Names.of(sorted(places)),
        offsets={str(partition): offset for partition, offset in sorted(places.items())},
    )


def log_out_of_range(partition: TopicPartition, offset: int, policy: str) -> None:
    """The log does not hold that offset."""
    READING.warning(
        "reset",
        "partition %(partition)s has no offset %(offset)d; reading goes on from the %(to)s",
        partition=str(partition),
        offset=offset,
        to=policy,
    )


def log_truncated(partition: TopicPartition, end_offset: int, error: LogTruncated) -> None:
    """What was read is gone from the log of a new leader."""
    READING.warning(
        "truncated",
        "%(reason)s; reading goes on from there",
        partition=str(partition),
        offset=end_offset,
        reason=str(error),
    )


def log_fetch_retry(
    recurring: Recurring, partition: TopicPartition, error: ClientError, pause_s: float, now: float
) -> None:
    """A Fetch, or what it needs, has failed and is tried again."""
    kind = getattr(error, "name", type(error).__name__)
    READING.tell(
        recurring.level(kind, now),
        "again",
        "partition %(partition)s is read again in a moment: %(reason)s",
        partition=str(partition),
        reason=str(error),
        pause_s=round(pause_s, 3),
    )
