"""Logs that no topic record names: which of them an interrupted change explains, and the others.

Removing an unknown log is the most dangerous thing that a start can do: if the topic records are
what was lost, it removes all the data as well. So a start removes a log only if one of two things
explains it, and both leave evidence:

- the creation of its topic stopped before the topic record was durable: then no client can
  have written to it, and it is empty;
- the deletion of its topic stopped after the record that says so: then that record is there.

Any other log has lost its topic record. The broker refuses to start, unless it is configured to
adopt such logs: then each gets a new topic record, with default configs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from onceflow.broker.topics.metadata_log import (
    METADATA_LOG,
    METADATA_TOPIC,
    MetadataImage,
    TopicRecord,
)
from onceflow.errors import LogCorrupt
from onceflow.log import PartitionLog

_MOST_NAMED = 5


class UnknownLogs(NamedTuple):
    """The logs that no topic record names."""

    never_used: list[PartitionLog]
    """Empty logs of a topic whose creation was interrupted, or of partitions never added."""
    deleted: list[PartitionLog]
    """Logs of topics whose deletion was interrupted."""
    unexplained: list[PartitionLog]


def sort_unknown(
    logs: Iterable[PartitionLog], image: MetadataImage, *, beginning_is_lost: bool
) -> UnknownLogs:
    """Explains each log that no topic record names. If the metadata log itself has lost its
    beginning, an empty log proves nothing: its topic may just never have been used."""
    unknown = UnknownLogs([], [], [])
    for log in logs:
        log_id = log.log_id
        topic = image.topics.get(log_id.topic_id)
        if log_id == METADATA_LOG or (topic is not None and log_id.partition < topic.partitions):
            continue
        # Only evidence lets a log go; without any it is `unexplained`, never removed.
        if log_id.topic_id in image.deleted:
            unknown.deleted.append(log)
        elif log.end_offset == 0 and not beginning_is_lost:
            unknown.never_used.append(log)
        else:
            unknown.unexplained.append(log)
    return unknown


def refusal(logs: Collection[PartitionLog]) -> LogCorrupt:
    """The error for logs whose topic records were lost; it says how to go on."""
    size = sum(log.size for log in logs)
    return LogCorrupt(
        f"{METADATA_TOPIC} has no record of {topic_names(logs)}, but {len(logs)} logs with "
        f"{size} bytes of records are there. Nothing was removed. Restore the data directory from "
        "a backup, or start once with adopt.unknown.logs = true (onceflow serve --set "
        "adopt.unknown.logs=true): then these logs become topics again, with default configs"
    )


def adopted(
    logs: Iterable[PartitionLog], known: Collection[TopicRecord]
) -> tuple[TopicRecord, ...]:
    """A topic record for each topic of these logs, under its old name if that is free."""
    by_topic: dict[UUID, list[PartitionLog]] = {}
    for log in logs:
        by_topic.setdefault(log.log_id.topic_id, []).append(log)
    by_id = {record.topic_id: record for record in known}
    taken = {record.name for record in known}
    records = []
    for topic_id, of_topic in by_topic.items():
        partitions = max(log.log_id.partition for log in of_topic) + 1
        earlier = by_id.get(topic_id)
        if earlier is not None:  # only some of its partitions were lost
            records.append(replace(earlier, partitions=partitions))
            continue
        name = of_topic[0].topic
        if name in taken:
            name = f"{name}.{topic_id.hex[:8]}"
        taken.add(name)
        records.append(TopicRecord(topic_id=topic_id, name=name, partitions=partitions, configs={}))
    return tuple(records)


def topic_names(logs: Iterable[PartitionLog]) -> str:
    """The topics of these logs as text for people: the first few by name."""
    names = sorted({log.topic for log in logs})
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more topics" if more > 0 else "")
