"""What a checkpoint has to make durable of one log, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onceflow.log.segment import Segment
from onceflow.log.side_files import Beside, write_beside, write_whole
from onceflow.runtime.background import Job
from onceflow.runtime.disk import Disk, File

if TYPE_CHECKING:
    from onceflow.log.partition_log import PartitionLog


class Flush(NamedTuple):
    """What is not durable yet of a log."""

    log: PartitionLog
    files: tuple[File, ...]
    indexes: tuple[tuple[Segment, bytes, bytes], ...]
    beside: tuple[Beside, ...]
    directory: str | None
    """Set when names in it have changed."""


def write_flushes(disk: Disk, flushes: list[Flush]) -> Job:
    """All data first: where there is no room for the rest, only that is due again."""
    for flush in flushes:
        for file in flush.files:
            file.sync()
            yield
    for flush in flushes:
        for segment, offsets, times in flush.indexes:
            write_whole(disk, segment.path("index"), offsets)
            yield
            write_whole(disk, segment.path("timeindex"), times)
            yield
        yield from write_beside(disk, flush.log.directory, flush.beside)
        if flush.directory is not None:
            disk.sync_dir(flush.directory)
            yield
