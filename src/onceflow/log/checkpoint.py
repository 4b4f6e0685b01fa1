"""The checkpoint file: up to where each log is durable in its own files, and what to replay on top.

It is the root of recovery. One line of JSON under a version and a CRC-32C, written aside, synced
and renamed, so that there is always exactly one whole checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from onceflow.checksum import crc32c
from onceflow.errors import DiskError, LogCorrupt, NewerFormat
from onceflow.log.config import LogLayout
from onceflow.log.journal import JournalStart
from onceflow.log.partition_log import Flush, LogPosition, Unwritten, write_flushes
from onceflow.runtime import Access, Disk, Job
from onceflow.types import LogId

PATH = "checkpoint"
_UNFINISHED = "checkpoint.unfinished"
_MAGIC = b"onceflow-checkpoint"
FORMAT = 3
"""Raise it for a change that an older version cannot read, or would read wrongly. `gone` did not
raise it: a version without it moves those directories aside, as all did before."""
_ENCODED_TOGETHER = 64
_MORE_BYTES = 512
"""By which the next checkpoint may be longer at least, and have its room all the same."""


class Durability(Enum):
    """What an acknowledgement means."""

    FSYNC = "fsync"
    """On stable storage."""
    OS = "os"
    """In the page cache: safe when the process dies, perhaps not when the machine does."""


class SealedSegment(NamedTuple):
    """A file that no append changes any more."""

    base_offset: int
    size: int
    max_timestamp: int


class CheckpointedLog(NamedTuple):
    """One log as its own files hold it durably."""

    log_id: LogId
    topic: str
    start_offset: int
    end: LogPosition
    sealed: tuple[SealedSegment, ...]
    """The files before the one that `end` lies in."""
    cleaned_to: int = 0
    """Up to where it is compacted."""
    swapped: tuple[int, ...] = ()
    """The bases of sealed segments whose files may still have names that end in `.cleaned`."""
    modified: tuple[tuple[int, int], ...] = ()
    """The bases of segments without any timestamp, and when growth was last seen in them."""
    layout: LogLayout | None = None
    """The layout for later batches; None is the store's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of the store after the group before `journal`."""

    durability: Durability
    incarnation: int
    clean: bool
    """Written by an orderly stop: files end exactly where this says, indexes are saved."""
    journal: JournalStart | None
    logs: tuple[CheckpointedLog, ...]
    gone: tuple[str, ...] = ()
    """Directories of deleted logs that may still be there: nothing else explains them."""


def encode(checkpoint: Checkpoint) -> bytes:
    fields = {
        "durability": checkpoint.durability.value,
        "incarnation": checkpoint.incarnation,
        "clean": checkpoint.clean,
        "journal": checkpoint.journal,
        "gone": checkpoint.gone,
    }
    body = f'{_json(fields)[:-1]},"logs":[{",".join(_encoded_logs(checkpoint.logs))}]}}'.encode()
    return b"%s %d %08x\n%s\n" % (_MAGIC, FORMAT, _checksum(b"%d" % FORMAT, body), body)


def _encoded_logs(logs: Sequence[CheckpointedLog]) -> Iterator[str]:
    """In small portions: one call of `json.dumps` holds the GIL, and the owner's thread waits."""
    for start in range(0, len(logs), _ENCODED_TOGETHER):
        some = logs[start : start + _ENCODED_TOGETHER]
        yield _json([(log.log_id.topic_id.hex, log.log_id.partition, *log[1:]) for log in some])[
            1:-1
        ]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _checksum(version: bytes, body: bytes) -> int:
    return crc32c(body, crc32c(version))


def decode(data: bytes) -> Checkpoint:
    first, _, rest = data.partition(b"\n")
    try:
        magic, version, crc = first.split(b" ")
        if magic != _MAGIC:
            raise ValueError("it does not start as one")
        body = rest[:-1]
        if _checksum(version, body) != int(crc, 16):
            raise ValueError("its checksum does not fit")
        if int(version) > FORMAT:
            raise NewerFormat(
                f"the data directory has format {int(version)}, this version of Onceflow knows "
                f"up to {FORMAT}: use the newer version that wrote it"
            )
        return _from_json(json.loads(body))
    except ValueError as error:
        raise LogCorrupt(
            f"{PATH} is not a checkpoint: {error}. Nothing was changed; restore it from a backup"
        ) from error


def _from_json(fields: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        durability=Durability(fields["durability"]),
        incarnation=fields["incarnation"],
        clean=fields["clean"],
        journal=JournalStart(*fields["journal"]) if fields["journal"] else None,
        logs=tuple(
            CheckpointedLog(
                LogId(UUID(hex=topic_id), partition),
                topic,
                start,
                LogPosition(*end),
                tuple(SealedSegment(*each) for each in sealed),
                *_later(*later),
            )
            for topic_id, partition, topic, start, end, sealed, *later in fields["logs"]
        ),
        gone=tuple(fields.get("gone", ())),
    )


def _later(
    cleaned_to: int = 0,
    swapped: Iterable[int] = (),
    modified: Iterable[tuple[int, int]] = (),
    layout: Iterable[int] | None = None,
) -> tuple[int, tuple[int, ...], tuple[tuple[int, int], ...], LogLayout | None]:
    """Format 1 has none of these, format 2 the first two."""
    return (
        cleaned_to,
        tuple(swapped),
        tuple((base, ms) for base, ms in modified),
        None if layout is None else LogLayout(*layout),
    )


def read_checkpoint(disk: Disk) -> Checkpoint | None:
    """The checkpoint of this disk; None when there has never been one."""
    if not disk.exists(PATH):
        return None
    file = disk.open(PATH, Access.READ)
    return decode(file.pread(0, file.size()))


def write_checkpoint(
    disk: Disk, checkpoint: Checkpoint, flushes: list[Flush], unwritten: list[Unwritten]
) -> Job:
    """Makes the files durable, then says so: never the other way round."""
    yield from write_flushes(disk, flushes, unwritten)
    if unwritten:
        # A clean start trusts the indexes of active segments, and there may be older ones.
        checkpoint = replace(checkpoint, clean=False)
    data = encode(checkpoint)
    file = disk.open(_UNFINISHED, Access.CREATE)
    file.pwrite(0, data)  # over what `_keep_room` has put there
    file.truncate(len(data))
    # Synced before it is renamed: after a power cut the name could otherwise lead to an empty file,
    # and the checkpoint before it would be gone.
    file.sync()
    yield
    # The root's names (new partition directories) must be durable before a checkpoint names them.
    disk.sync_dir(".")
    yield
    disk.rename(_UNFINISHED, PATH)
    yield
    # The caller frees what only the old checkpoint needs as soon as this returns.
    disk.sync_dir(".")
    yield
    with suppress(DiskError):  # the checkpoint is there, whatever becomes of the next
        _keep_room(disk, len(data))


def _keep_room(disk: Disk, size: int) -> None:
    """Takes the room of the next checkpoint: on a disk that others have filled up to the last byte
    there has to be one before the files of a deleted topic can go."""
    file = disk.open(_UNFINISHED, Access.CREATE)
    file.truncate(0)  # as an earlier attempt may have left it
    file.pwrite(0, bytes(size + size // 8 + _MORE_BYTES))
