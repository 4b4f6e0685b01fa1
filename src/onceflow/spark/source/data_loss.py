"""What happens when records that a query has to read are gone: an error, or a warning in the log,
and the query goes on without them. The text says which records, what is there instead, and what to
do; the same warning is logged once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from onceflow.spark.errors import DataLost
from onceflow.spark.source.offsets import Offsets, OffsetSpan
from onceflow.types import TopicPartition

_log = logging.getLogger("onceflow.spark")

_ADVICE: Final = (
    "It is not known whether they were read. To go on without them set failOnDataLoss to "
    "false, which skips them with a warning; to start anew use a new checkpoint; to prevent it "
    "keep records longer (retention.ms, retention.bytes)"
)
_SKIPPED: Final = "skipped, because failOnDataLoss is false"


class LossRule:
    """`failOnDataLoss`. Raises `DataLost` with all that is lost at once, or warns."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._warned: set[str] = set()

    def gone(self, lost: Offsets) -> None:
        """Partitions that were read up to these offsets are no longer there."""
        self.report(
            f"partition {partition} was to be read from offset {offset} on, and is not there any "
            "more, or no longer selected"
            for partition, offset in sorted(lost.items())
        )

    def truncated(self, lost: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Logs end before the offset from which they are to be read: (offset, end)."""
        self.report(
            f"partition {partition} was to be read from offset {wanted} on, and ends at {end}: its "
            "log was cut, or the topic was deleted and recreated"
            for partition, (wanted, end) in sorted(lost.items())
        )

    def began_late(self, earliest: Offsets) -> None:
        """Partitions that are new, and have lost their first records already."""
        self.report(
            f"partition {partition} is new to this query and begins at offset {offset}: the "
            "records before it are gone"
            for partition, offset in sorted(earliest.items())
            if offset
        )

    def clipped(self, wanted: Iterable[OffsetSpan], earliest: Offsets) -> list[OffsetSpan]:
        """What is left of spans when logs begin at `earliest`; some may be empty."""
        held, lost = [], []
        for span in wanted:
            first = earliest[span.place]
            if span.start < first:
                lost.append(deleted(span, first))
            held.append(span._replace(start=min(max(span.start, first), span.end)))
        self.report(lost)
        return held

    def cut(self, wanted: Iterable[OffsetSpan], log_ends: Offsets) -> list[OffsetSpan]:
        """What is left of spans that were planned when logs were longer; some may be empty. Where
        no end is given, all of them is. The next batch begins where these were to end all the same:
        if the end was only old, or the batch had been written in full before, rows would be read
        twice from an earlier one."""
        held, lost = [], []
        for span in wanted:
            end = log_ends.get(span.place, span.end)
            if span.end > end:
                lost.append(
                    f"partition {span.place} was to be read from offset {span.start} up to "
                    f"{span.end}, and ends at {end}: its log was cut, or the topic was deleted and "
                    f"recreated. What is written there up to offset {span.end} is not read either"
                )
            held.append(span._replace(end=max(min(span.end, end), span.start)))
        self.report(lost)
        return held

    def recreated(self, topics: Iterable[str]) -> None:
        """Topics that have another id than when they were read."""
        self.report(
            f"topic {topic!r} was deleted and recreated since it was read; the log that is "
            "there now is a new one"
            for topic in sorted(topics)
        )

    def report(self, losses: Iterable[str]) -> None:
        """Raises or warns."""
        listed = list(losses)
        if listed and self._fail:
            raise DataLost(f"records are gone: {'; '.join(listed)}. {_ADVICE}")
        for loss in listed:
            if loss not in self._warned:
                self._warned.add(loss)
                _log.warning("records are gone: %s (%s)", loss, _SKIPPED)


def deleted(span: OffsetSpan, first: int) -> str:
    """The text for records that retention, or an application, has deleted."""
    return (
        f"partition {span.place} was to be read from offset {span.start} up to {span.end}, and "
        f"begins at {first}: the records before it were deleted"
    )
