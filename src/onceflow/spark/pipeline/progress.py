"""How far a query has come, from Spark's own progress reports; pure functions.

Rows that were read are counted by offsets: Spark counts a source twice that is read twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceflow.spark.errors import OffsetsUnreadable
from onceflow.spark.source import BatchOffsets
from onceflow.types import TopicPartition


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The last batch, in Spark's words."""

    batch_id: int
    batch_ms: int
    lag: int
    """Offsets that were there when the batch was planned, and are behind it."""
    state_rows: int
    watermark: str
    ends: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]


def batch_progress(progress: Mapping[str, Any]) -> BatchProgress:
    """Of a query's `lastProgress`, as JSON."""
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    lag = 0
    for number, source in enumerate(progress.get("sources", ())):
        offsets = _offsets(source.get("endOffset"))
        # Two sources may read one topic.
        starts.update(
            {_of(number, partition): offset for partition, offset in offsets.start.items()}
        )
        ends.update({_of(number, partition): offset for partition, offset in offsets.end.items()})
        seen = _offsets(source.get("latestOffset"))
        lag += sum(
            max(0, seen.end[partition] - seen.start.get(partition, 0)) for partition in seen.end
        )
    return BatchProgress(
        batch_id=progress.get("batchId", -1),
        batch_ms=progress.get("durationMs", {}).get("triggerExecution", 0),
        lag=lag,
        state_rows=sum(each.get("numRowsTotal", 0) for each in progress.get("stateOperators", ())),
        watermark=progress.get("eventTime", {}).get("watermark", ""),
        ends=ends,
        starts=starts,
    )


def _of(number: int, partition: TopicPartition) -> TopicPartition:
    return partition._replace(topic=f"{number} {partition.topic}")


def _offsets(value: Any) -> BatchOffsets:
    """Spark tells them as a table, or as JSON in a text."""
    try:
        offsets = json.loads(value) if isinstance(value, str) else value
        return BatchOffsets.from_log(offsets or {})
    except (ValueError, OffsetsUnreadable):
        return BatchOffsets({}, {})


class ReadCount:
    """Offsets that were read since the count began."""

    def __init__(self) -> None:
        self._begins: dict[TopicPartition, int] = {}

    def add(self, batch: BatchProgress) -> int:
        """All so far."""
        for partition in batch.ends:
            self._begins.setdefault(partition, batch.starts.get(partition, batch.ends[partition]))
        return sum(end - self._begins[partition] for partition, end in batch.ends.items())
