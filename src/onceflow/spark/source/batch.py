"""What a batch reads: all that lies between two positions, split into tasks.

An end that was given and that is not there yet, or not committed, is waited for, up to
`default.api.timeout.ms`: once, here, and not by every task and each of its attempts.
"""

from __future__ import annotations

from typing import Final

from onceflow.client import LATEST, RangeUnavailable
from onceflow.runtime import Clock
from onceflow.spark.errors import InvalidOptions
from onceflow.spark.source.cluster import Ends
from onceflow.spark.source.data_loss import LossRule
from onceflow.spark.source.offsets import Offsets, OffsetSpan, divide, spans
from onceflow.spark.source.option_values import AtOffsets, Edge, Position
from onceflow.spark.source.options import SourceOptions
from onceflow.spark.source.positions import resolve_end, resolve_start
from onceflow.types import TopicPartition

_POLL_S: Final = 0.1


def batch_tasks(options: SourceOptions, ends: Ends, clock: Clock) -> list[tuple[OffsetSpan, ...]]:
    """The spans of each task. Raises `RangeUnavailable`, `DataLost`, and what the options cannot
    mean on this cluster."""
    loss = LossRule(options.fail_on_data_loss)
    partitions = ends.partitions(options.selection)
    start = resolve_start(options, options.batch_start, ends, partitions, loss)
    end = resolve_end(options.batch_end, ends, partitions)
    crossed = [
        f"partition {partition}: the start, offset {start[partition]}, is behind the end, "
        f"{end[partition]}"
        for partition in sorted(end)
        if not _is_latest(options.batch_end, partition) and end[partition] < start[partition]
    ]
    if crossed:
        raise InvalidOptions(crossed)
    wanted = spans(start, end, ends.ids)
    _wait_for({span.place: span.end for span in wanted}, options, ends, clock)
    return divide(wanted, options.division)


def _is_latest(end: Position, partition: TopicPartition) -> bool:
    """Then a start behind the end has been written, and is not committed yet: there is nothing to
    be read, as in a stream, which waits for it."""
    return end is Edge.LATEST or (isinstance(end, AtOffsets) and end.offsets[partition] == LATEST)


def _wait_for(wanted: Offsets, options: SourceOptions, ends: Ends, clock: Clock) -> None:
    limit_s = options.settings.retry.total_s
    deadline = clock.monotonic() + limit_s
    while True:
        latest = ends.latest(list(wanted))
        missing = sorted(partition for partition in wanted if latest[partition] < wanted[partition])
        if not missing:
            return
        if clock.monotonic() >= deadline:
            break
        ends.wait({partition: latest[partition] for partition in missing}, _POLL_S)
    log_ends = ends.log_ends(missing)
    listed = "; ".join(
        f"partition {partition} is to be read up to offset {wanted[partition]}, committed data "
        f"ends at {latest[partition]}, the log at {log_ends[partition]}"
        for partition in missing
    )
    raise RangeUnavailable(
        f"the end did not come within {limit_s:g} s (default.api.timeout.ms): {listed}. An open "
        "transaction holds readers of committed records back; choose an earlier end, or latest"
    )
