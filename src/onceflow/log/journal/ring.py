"""The journal's files: pre-written, used in turn, used again once a checkpoint has passed them.

A file is written full of zeros and synced before its first use, so that a group later overwrites
blocks that exist: half the time of writing new ones. The ring starts with one small file and each
new one is twice as large as the one before, up to a limit: an embedded broker that sees little
traffic takes little room, a busy one checkpoints rarely. Small files are removed when larger ones
have taken over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from onceflow.errors import DiskError, DiskExhausted
from onceflow.log.jobs import Jobs
from onceflow.log.journal.format import BLOCK_SIZE, padded
from onceflow.log.quarantine import Quarantine
from onceflow.runtime import Access, Disk, File, Job, JobLane

DIRECTORY = "journal"
_ZEROS = bytes(1 << 20)
_GROWTH = "growth"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """Sizes of the journal."""

    first_file_bytes: int = 1 << 20
    largest_file_bytes: int = 128 << 20
    files: int = 4
    gathered_bytes: int = 64 << 20
    """How much may wait in memory for the group in flight."""


@dataclass(slots=True, eq=False)
class RingFile:
    """One file of the ring, and the last group in it."""

    number: int
    file: File
    size: int
    last_sequence: int = -1


def file_path(number: int) -> str:
    return f"{DIRECTORY}/{number:08}.journal"


def _unfinished_path(number: int) -> str:
    return f"{DIRECTORY}/{number:08}.unfinished"


def file_number(name: str) -> int | None:
    """The number in a file's name; None for a name that is not a journal file's."""
    stem, dot, suffix = name.partition(".")
    return int(stem) if dot and suffix == "journal" and stem.isdigit() else None


def prepare_file(disk: Disk, number: int, size: int) -> Job:
    """Writes the file full of zeros under a name that recovery ignores, then names it."""
    unfinished = _unfinished_path(number)
    file = disk.open(unfinished, Access.CREATE)
    try:
        for position in range(0, size, len(_ZEROS)):
            file.pwrite(position, _ZEROS[: size - position])
            yield
        # The zeros are durable before the file has its name: a start takes every named file for one
        # whose blocks exist, and a group's write is durable without a change of metadata.
        file.sync()
    except Exception:
        file.close()
        _discard(disk, number)  # give back what was taken: others need the room
        raise
    yield
    disk.rename(unfinished, file_path(number))
    # Before any group lies in it: a power cut must not take the name of acknowledged data.
    disk.sync_dir(DIRECTORY)


def _discard(disk: Disk, number: int) -> None:
    """Removes a file that no group has been written to, so that attempts do not fill the disk. One
    that cannot be removed has a number that is not used again."""
    for path in (_unfinished_path(number), file_path(number)):
        with suppress(DiskError):
            if disk.exists(path):
                disk.unlink(path)


class Ring:
    """Where the next group goes. All on the owner's thread; files are made in the background."""

    def __init__(
        self,
        disk: Disk,
        jobs: Jobs,
        config: JournalConfig,
        may_take: Callable[[int], bool],
        changed: Callable[[], None],
        quarantine: Quarantine,
    ) -> None:
        self._disk = disk
        self._jobs = jobs
        self._config = config
        self._may_take = may_take
        self._changed = changed
        self._quarantine = quarantine
        self._free: list[RingFile] = []
        self._full: list[RingFile] = []
        self._next_number = 0
        self._preparing = False
        self._adopt()
        self.current = self._free.pop()
        self.position = 0

    def _adopt(self) -> None:
        """Takes over the files of an earlier run; the checkpoint has passed all of them."""
        if not self._disk.exists(DIRECTORY):
            self._disk.mkdir(DIRECTORY)
            self._disk.sync_dir(".")
        for entry in self._disk.entries(DIRECTORY):
            number = file_number(entry.name)
            if number is None:
                self._disk.unlink(f"{DIRECTORY}/{entry.name}")
                continue
            self._next_number = max(self._next_number, number + 1)
            self._free.append(self._open(number, entry.size))
        # After a kill the name of the last may be in the page cache alone, and what is acknowledged
        # from here on lies in it.
        self._disk.sync_dir(DIRECTORY)
        if not self._free:
            size = self._config.first_file_bytes
            for _ in prepare_file(self._disk, self._next_number, size):
                pass
            self._free.append(self._open(self._next_number, size))
            self._next_number += 1
        self._set_free([])

    def _open(self, number: int, size: int) -> RingFile:
        file = self._disk.open(file_path(number), Access.DIRECT)
        return RingFile(number, file, size // BLOCK_SIZE * BLOCK_SIZE)

    def close_files(self) -> None:
        """Closes the files; the ring must not be used afterwards."""
        for each in (*self._free, *self._full, self.current):
            each.file.close()

    def place(self, length: int) -> tuple[RingFile, int] | None:
        """Room for a group of `length` bytes, or None until `changed` is called."""
        size = padded(length)
        if self.position + size > self.current.size and not self._turn(size):
            return None
        at = self.position
        self.position += size
        if self.position * 2 > self.current.size:
            self._ensure_next(size)
        return self.current, at

    def _turn(self, size: int) -> bool:
        found = next((each for each in reversed(self._free) if each.size >= size), None)
        if found is None:
            self._ensure_next(size)
            return False
        self._free.remove(found)
        self._full.append(self.current)
        self.current, self.position = found, 0
        return True

    def _ensure_next(self, group: int) -> None:
        """Has a file ready before the present one is full, unless the ring is at its limit."""
        wanted = min(self._config.largest_file_bytes, 2 * self.current.size)
        wanted = max(wanted, padded(group))
        if self._preparing or any(each.size >= wanted for each in self._free):
            return
        large = sum(each.size >= wanted for each in (*self._full, self.current))
        may_grow = large < self._config.files and self._may_take(wanted)
        if may_grow and self._quarantine.begin(_GROWTH, DIRECTORY):
            self._prepare(wanted)

    def _prepare(self, size: int) -> None:
        self._preparing = True
        number, self._next_number = self._next_number, self._next_number + 1
        opened: list[RingFile] = []

        def job() -> Job:
            try:
                yield from prepare_file(self._disk, number, size)
                opened.append(self._open(number, size))
            except Exception:
                _discard(self._disk, number)
                raise

        def prepared(error: Exception | None) -> None:
            self._preparing = False
            if error is None:
                self._quarantine.passed(_GROWTH, DIRECTORY)
                self._set_free(opened)
                self._changed()
            elif not isinstance(error, DiskExhausted):
                self._quarantine.failed(_GROWTH, DIRECTORY, file_path(number), error)
            # Not to be able to grow is no failure, whatever the reason: nothing durable is in that
            # file. The ring goes on with those that it has, and does not try again before the next
            # group.

        self._jobs.submit(JobLane.GROW, job(), prepared)

    def _set_free(self, files: list[RingFile]) -> None:
        self._free = sorted([*self._free, *files], key=lambda file: file.size)

    def release(self, before_sequence: int, start_file: int) -> list[str]:
        """A checkpoint covers every group before this one: their files may be used again, but for
        small ones, which are given up. Their paths: a start finds use for one that is left.

        The file in which its journal starts must stay, or the checkpoint would miss it.
        """
        # Strictly below: `before_sequence` is the first group that a recovery replays. A file that
        # is reused too early loses acknowledged groups that no log file holds durably.
        passed = [each for each in self._full if each.last_sequence < before_sequence]
        self._full = [each for each in self._full if each not in passed]
        small = [
            each for each in passed if each.size < self.current.size and each.number != start_file
        ]
        self._set_free([each for each in passed if each not in small])
        again = self.position > 0 and self.current.last_sequence < before_sequence
        if again:
            self.position = 0  # nothing in it is needed any more: recovery looks at its head too
        if passed or again:
            self._changed()
        return [file_path(each.number) for each in small]
