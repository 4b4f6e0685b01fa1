"""The data that the owner of a log and the job that compacts it exchange.

Apart from `cleaner`, which imports the kernels and with them numba: a broker starts without either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onceflow.errors import OnceflowError
from onceflow.log.config import LogConfig
from onceflow.log.segments import CLEANED, OpenFiles
from onceflow.runtime import Disk, File, Job


class CleaningStopped(OnceflowError):
    """The owner has other plans; the log is compacted another time."""


class SourceSegment(NamedTuple):
    """A sealed segment that is compacted. There may be more of them than descriptors: only the
    files read last are open."""

    files: OpenFiles
    path: str
    base_offset: int
    end_offset: int
    size: int

    @property
    def file(self) -> File:
        return self.files.get(self.path, _keep_nothing)


def _keep_nothing() -> None:
    """There is nothing to give back with the file of a source."""


class CleanedSegment(NamedTuple):
    """A new segment, whole and synced beside the ones that it stands for; of size 0 when nothing
    is left of them, and then it has no file."""

    base_offset: int
    end_offset: int
    size: int
    max_timestamp: int
    replaces: tuple[int, ...]
    """Base offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """The order for one compaction."""

    directory: str
    sources: tuple[SourceSegment, ...]
    first_dirty: int
    aborted: Sequence[tuple[int, int, int]] | None
    """Aborted transactions as `Companion.aborted` gives them; None when there is no companion."""
    producers: Collection[int] | None
    """Producers whose last batch and marker stay; None (not known) means all."""
    config: LogConfig
    now_ms: int
    should_stop: Callable[[], bool]
    reads: Callable[[str], None]
    """Called with the path of each file before it is read, so that an error can name it."""


@dataclass(slots=True)
class CleaningOutcome:
    """The result; the owner reads it when the job has ended."""

    segments: list[CleanedSegment] = field(default_factory=list)
    cleaned_to: int = 0
    problem: Exception | None = None
    """Why nothing came of it: no room, a file that fails, damaged records, the owner's wish."""
    path: str = ""
    """The file that was read last."""

    def reads(self, path: str) -> None:
        self.path = path


def remove_cleaned(disk: Disk, directory: str) -> Job:
    """Removes what a compaction has left beside the segments."""
    for entry in disk.entries(directory):
        if entry.name.endswith(CLEANED):
            disk.unlink(f"{directory}/{entry.name}")
            yield
