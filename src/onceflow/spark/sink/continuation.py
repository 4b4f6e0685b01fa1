"""Going on without the checkpoint that was lost: only where the group's offsets say."""

from __future__ import annotations

import json
from collections.abc import Mapping

from onceflow.client import TopicPartition
from onceflow.spark.errors import LedgerConflict
from onceflow.spark.sink.batch import BatchWriter
from onceflow.spark.sink.identity import Files
from onceflow.spark.sink.ledger import Planned
from onceflow.spark.sink.offset_log import LoggedBatch, topic_offsets_of
from onceflow.spark.source import by_topic


def check_continues(
    writer: BatchWriter,
    files: Files,
    planned: Planned,
    logged: LoggedBatch,
    *,
    require_stable: bool,
) -> None:
    """Raises `LedgerConflict` unless the query's first batch begins where the group ended."""
    if planned.batch_id != 0:
        raise LedgerConflict(
            f"continue_from_group is for a new checkpoint; this one is at batch {planned.batch_id}"
        )
    starts = _starts(files, logged)
    if not starts:
        raise LedgerConflict(
            "continue_from_group needs a source whose offsets are those of topics, and to know "
            "where it starts"
        )
    group = writer.group_offsets(starts, require_stable=require_stable)
    differing = {place for place, start in starts.items() if group.get(place, start) != start}
    if differing:
        wanted = json.dumps(by_topic({**starts, **group}))
        raise LedgerConflict(
            f"the query does not start where the group ended, in {len(differing)} partitions: rows "
            f"would be lost or written twice. Start its source with startingOffsets = {wanted}"
        )


def _starts(files: Files, logged: LoggedBatch) -> Mapping[TopicPartition, int]:
    """Where the first batch begins: our source says so in its offset, Spark's own keeps it in a
    file."""
    starts: dict[TopicPartition, int] = {}
    for name, offsets in logged.topic_offsets().items():
        found = dict(offsets.start)
        if not found:
            text = files.read(f"sources/{name}/0") or ""
            kept = topic_offsets_of(text[text.find("{") :])
            found = dict(kept.end) if kept is not None else {}
        starts |= found
    return starts
