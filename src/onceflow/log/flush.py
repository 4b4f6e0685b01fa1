"""What a checkpoint has to make durable of one log, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onceflow.errors import DiskFull
from onceflow.log.segments import Segment
from onceflow.log.side_files import Beside, write_beside, write_whole
from onceflow.runtime import Disk, File, Job

if TYPE_CHECKING:
    from onceflow.log.partition_log import PartitionLog


class Flush(NamedTuple):
    """What is not durable yet of a log."""

    log: PartitionLog
    files: tuple[tuple[Segment, File], ...]
    indexes: tuple[tuple[Segment, bytes, bytes], ...]
    beside: tuple[Beside, ...]
    directory: str | None
    """Set when names in it have changed."""


class Unwritten(NamedTuple):
    """Indexes or side files of a log that could not be written; its data is durable all the same,
    and nothing depends on the rest."""

    flush: Flush
    error: Exception


def write_flushes(disk: Disk, flushes: list[Flush], unwritten: list[Unwritten]) -> Job:
    """All data first: where there is no room for the rest, only that is due again. Of a log whose
    other files fail only these are, which are told by `unwritten`. A full disk has to do without
    them, for a checkpoint is what the files of deleted records wait for."""
    for flush in flushes:
        for _, file in flush.files:
            file.sync()
            yield
    for flush in flushes:
        try:
            yield from _write_rest(disk, flush)
        except Exception as error:
            unwritten.append(Unwritten(flush, _bare(error)))
        if flush.directory is not None:
            disk.sync_dir(flush.directory)
            yield


def _bare(error: Exception) -> Exception:
    """Without the frames that it came through: they hold the files of all flushes, and would keep
    them open until the collector of cycles comes by."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _write_rest(disk: Disk, flush: Flush) -> Job:
    for segment, offsets, times in flush.indexes:
        yield from _write_index(disk, segment.path("index"), offsets)
        yield from _write_index(disk, segment.path("timeindex"), times)
    yield from write_beside(disk, flush.log.directory, flush.beside)


def _write_index(disk: Disk, path: str, data: bytes) -> Job:
    try:
        write_whole(disk, path, data)
    except DiskFull:
        if disk.exists(path):
            disk.unlink(path)  # a part of one takes room, and has to be found out
        raise
    yield
