"""Reads the journal after a crash: the longest valid chain of groups from a start.

The chain ends at the first group that is not whole: it was in flight and never acknowledged. But a
whole group of this incarnation with a higher sequence anywhere behind the end means that a group
which *was* durable is gone. That is corruption, and the reader refuses it instead of cutting it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onceflow.errors import LogCorrupt
from onceflow.log.journal.format import (
    BLOCK_SIZE,
    HEADER_SIZE,
    MAGIC,
    GroupHeader,
    RawEntry,
    group_is_whole,
    padded,
    read_entries,
    read_group_header,
)
from onceflow.log.journal.journal import JournalStart
from onceflow.log.journal.ring import DIRECTORY, file_number, file_path
from onceflow.runtime import Access, Disk, File

_SCAN_BYTES = 512 << 10
_MAGIC = MAGIC.to_bytes(4, "big")


class JournalGroup(NamedTuple):
    """A durable group: its header and all of its bytes."""

    header: GroupHeader
    data: memoryview

    def entries(self) -> Iterator[RawEntry]:
        where = f"{file_path(self.header.file)} at byte {self.header.position}"
        return read_entries(self.data, self.header, where)


class JournalChain:
    """Iterate, as often as needed, to get the durable groups from `start` on, in order."""

    def __init__(self, disk: Disk, start: JournalStart) -> None:
        self._files = _open_files(disk)
        self._start = start
        self._end = start

    def __iter__(self) -> Iterator[JournalGroup]:
        expected = self._start
        while (found := _find(self._files, expected)) is not None:
            yield found
            header = found.header
            expected = JournalStart(
                expected.incarnation,
                expected.sequence + 1,
                header.file,
                0,  # only the first file's size is known
                header.position + padded(HEADER_SIZE + header.payload_length),
                header.crc,
            )
        if expected.sequence < self._end.sequence:
            raise LogCorrupt(
                f"journal group {expected.sequence} was whole when it was read first and is not "
                "now: the disk is failing. Restore the data directory from a backup"
            )
        self._end = expected

    def verify(self) -> Iterator[JournalGroup]:
        """The same, and at its end the refusal of damage."""
        _check_start(self._files, self._start)
        yield from self
        _refuse_later_groups(self._files, self._end)


def _check_start(files: dict[int, File], start: JournalStart) -> None:
    """The file that groups went on in must be there whole, even if nothing was written since."""
    size = files[start.file].size() if start.file in files else None
    if size is None or size < start.file_size:
        state = "is missing" if size is None else f"has {size} bytes"
        raise LogCorrupt(
            f"{file_path(start.file)} {state}, but it had {start.file_size}: acknowledged data "
            "may be lost. Nothing was changed; restore the data directory from a backup"
        )


def _open_files(disk: Disk) -> dict[int, File]:
    if not disk.exists(DIRECTORY):
        return {}
    numbers = (file_number(entry.name) for entry in disk.entries(DIRECTORY))
    return {
        number: disk.open(file_path(number), Access.READ)
        for number in numbers
        if number is not None
    }


def _find(files: dict[int, File], expected: JournalStart) -> JournalGroup | None:
    """The group after the last: where that ended, or at the head of another file."""
    places = [(expected.file, expected.position), *((number, 0) for number in files)]
    for number, position in places:
        if number not in files:
            continue
        header = _header_at(files[number], number, position)
        if (
            header is not None
            and header.incarnation == expected.incarnation
            and header.sequence == expected.sequence
            and header.previous_crc == expected.previous_crc
        ):
            group = files[number].pread(position, HEADER_SIZE + header.payload_length)
            if group_is_whole(group, header):
                return JournalGroup(header, memoryview(group))
    return None


def _header_at(file: File, number: int, position: int) -> GroupHeader | None:
    header = read_group_header(file.pread(position, HEADER_SIZE))
    if header is None or (header.file, header.position) != (number, position):
        return None
    return header


def _refuse_later_groups(files: dict[int, File], end: JournalStart) -> None:
    for number, file in files.items():
        for position in _magic_positions(file):
            header = _header_at(file, number, position)
            if (
                header is not None
                and header.incarnation == end.incarnation
                and header.sequence >= end.sequence
                and group_is_whole(
                    file.pread(position, HEADER_SIZE + header.payload_length), header
                )
            ):
                raise LogCorrupt(
                    f"journal group {end.sequence} is missing or damaged (expected in "
                    f"{file_path(end.file)} at byte {end.position}), but group {header.sequence} "
                    f"is whole in {file_path(number)} at byte {position}: acknowledged data is "
                    "damaged. Nothing was changed; restore the data directory from a backup"
                )


def _magic_positions(file: File) -> Iterator[int]:
    """The blocks that start as a group does. All files are read for this: that must be quick."""
    size = file.size() // BLOCK_SIZE * BLOCK_SIZE
    for base in range(0, size, _SCAN_BYTES):
        chunk = file.pread(base, min(_SCAN_BYTES, size - base))
        firsts = chunk[::BLOCK_SIZE]
        block = firsts.find(_MAGIC[0])
        while block >= 0:
            if chunk.startswith(_MAGIC, block * BLOCK_SIZE):
                yield base + block * BLOCK_SIZE
            block = firsts.find(_MAGIC[0], block + 1)
