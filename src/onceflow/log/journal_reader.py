"""Reads the journal after a crash: the longest valid chain of groups from a start.

The chain ends at the first group that is not whole: it was in flight, nobody was told. But a whole
group of this incarnation with a higher sequence anywhere behind the end means that one which *was*
durable is gone. That is corruption, and it is refused instead of cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onceflow.errors import LogCorrupt
from onceflow.log.journal import JournalStart
from onceflow.log.journal_format import (
    BLOCK_SIZE,
    HEADER_SIZE,
    MAGIC,
    GroupHeader,
    JournalEntry,
    group_is_whole,
    padded,
    read_entries,
    read_group_header,
)
from onceflow.log.journal_ring import DIRECTORY, file_number, file_path
from onceflow.runtime.disk import Access, Disk, File

_SCAN_BYTES = 4 << 20


def read_journal(disk: Disk, start: JournalStart) -> Iterator[list[JournalEntry]]:
    """The entries of each durable group from `start` on, group by group, in order."""
    files = _open_files(disk)
    _check_start(files, start)
    expected = start
    while (found := _find(files, expected)) is not None:
        header, group = found
        where = f"{file_path(header.file)} at byte {header.position}"
        yield list(read_entries(memoryview(group), header, where))
        expected = JournalStart(
            start.incarnation,
            expected.sequence + 1,
            header.file,
            0,  # only the first file's size is known
            header.position + padded(HEADER_SIZE + header.payload_length),
            header.crc,
        )
    _refuse_later_groups(files, expected)


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


def _find(files: dict[int, File], expected: JournalStart) -> tuple[GroupHeader, bytes] | None:
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
                return header, group
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
    size = file.size()
    for base in range(0, size, _SCAN_BYTES):
        chunk = file.pread(base, min(_SCAN_BYTES, size - base) // BLOCK_SIZE * BLOCK_SIZE)
        words = np.frombuffer(chunk, dtype=">u4")[:: BLOCK_SIZE // 4]
        for block in np.flatnonzero(words == MAGIC):
            yield base + int(block) * BLOCK_SIZE
