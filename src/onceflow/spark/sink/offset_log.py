"""A line of Spark's offset log, read: which batch it is, when it was planned, where it ends.

The digest of a batch is taken over the canonical text of the offsets of all sources, so that the
same batch has the same digest however its JSON was written. Offsets of our source and of Spark's
own Kafka source are understood; of others only the text counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from onceflow.spark.errors import OffsetsUnreadable, SinkError
from onceflow.spark.source import BatchOffsets
from onceflow.types import TopicPartition

_NO_OFFSET: Final = "-"
_BY_POSITION: Final = "v1"
_BY_NAME: Final = "v2"


class OffsetLogUnreadable(SinkError):
    """Spark's offset log has another form than this release knows."""


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """What Spark has logged of a batch before it runs it."""

    planned_ms: int
    """0 where Spark did not say."""
    sources: tuple[tuple[str, str | None], ...]
    """Name or number of each source, in order, and the text of its offset."""

    @property
    def digest(self) -> str:
        text = json.dumps([[name, _canonical(offset)] for name, offset in self.sources])
        return hashlib.sha256(text.encode()).hexdigest()

    def topic_offsets(self) -> dict[str, BatchOffsets]:
        """Of each source whose offsets are those of topics."""
        found = {}
        for name, text in self.sources:
            offsets = None if text is None else topic_offsets_of(text)
            if offsets is not None:
                found[name] = offsets
        return found

    def ends(self) -> dict[TopicPartition, int]:
        """Up to where the batch has read all topics; where two sources read one, the lesser."""
        return _least(offsets.end.items() for offsets in self.topic_offsets().values())


def read_offset_log(text: str) -> LoggedBatch:
    """A file of the checkpoint's directory `offsets`; raises `OffsetLogUnreadable`."""
    version, _, rest = text.partition("\n")
    metadata, _, listed = rest.partition("\n")
    lines = listed.splitlines()
    if version == _BY_POSITION:
        named = [(str(number), line) for number, line in enumerate(lines)]
    elif version == _BY_NAME:
        named = sorted((name, line) for name, _, line in (each.partition(":") for each in lines))
    else:
        raise OffsetLogUnreadable(
            f"Spark's offset log begins with {version[:20]!r}; this release knows v1 and v2. Use "
            "the Spark release that Onceflow was installed with"
        )
    sources = tuple((name, None if line == _NO_OFFSET else line) for name, line in named)
    return LoggedBatch(_planned_ms(metadata), sources)


def _planned_ms(metadata: str) -> int:
    try:
        planned_ms = json.loads(metadata)["batchTimestampMs"]
    except (ValueError, KeyError, TypeError):
        return 0
    return planned_ms if type(planned_ms) is int else 0


def _canonical(offset: str | None) -> Any:
    if offset is None:
        return None
    try:
        return json.dumps(json.loads(offset), sort_keys=True, separators=(",", ":"))
    except ValueError:
        return offset


def topic_offsets_of(text: str) -> BatchOffsets | None:
    """None when these are no offsets of topics."""
    try:
        found = json.loads(text)
        offsets = BatchOffsets.from_log(found) if isinstance(found, dict) else None
    except (ValueError, OffsetsUnreadable):
        return None
    return offsets if offsets is not None and offsets.end else None


def _least(parts: Iterable[Iterable[tuple[TopicPartition, int]]]) -> dict[TopicPartition, int]:
    least: dict[TopicPartition, int] = {}
    for part in parts:
        for partition, offset in part:
            least[partition] = min(offset, least.get(partition, offset))
    return least
