"""The way into `__consumer_offsets`: decisions go in as records, and count when they are durable.

One write holds what belongs together of one group: it becomes durable, or fails, as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from onceflow.errors import DiskError, DiskFull, StoreBusy, StoreClosed, StoreFailed
from onceflow.group.offsets import CommittedOffsets, OffsetRecord
from onceflow.group.partitioner import partition_for
from onceflow.group.records import (
    GroupKey,
    GroupRecordMalformed,
    GroupValue,
    encode_group,
    encode_key,
    encode_offset,
)
from onceflow.group.writes import Writes
from onceflow.wire.error_code import ErrorCode

# What a client is told when its group's records could not be written: to try again, to look for
# another coordinator, or (the default) that this cannot work.
_FAILURES: tuple[tuple[tuple[type[Exception], ...], ErrorCode], ...] = (
    ((StoreBusy, DiskFull), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ((StoreFailed, StoreClosed, DiskError), ErrorCode.NOT_COORDINATOR),
)


class OffsetsLog(Protocol):
    """The partitions of `__consumer_offsets`."""

    def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        done: Callable[[Exception | None], None],
    ) -> None:
        """Appends keys and values (None: a tombstone), in the order of the calls.

        `done` is called on this thread, perhaps at once: with None when the records are durable,
        or with what went wrong.
        """
        ...


def failure_code(failure: Exception | None) -> ErrorCode:
    """What a failed append means for the client."""
    if failure is None:
        return ErrorCode.NONE
    for kinds, code in _FAILURES:
        if isinstance(failure, kinds):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


class OffsetsWriter:
    """Writes records of groups, and keeps the committed offsets in step with what is durable."""

    __slots__ = ("_log", "_partitions", "_writes", "offsets")

    def __init__(self, log: OffsetsLog, partitions: int) -> None:
        self._log = log
        self._partitions = partitions
        self._writes = Writes()
        self.offsets = CommittedOffsets()

    def partition_for(self, group_id: str) -> int:
        """The partition that keeps a group."""
        return partition_for(group_id, self._partitions)

    def write(
        self,
        group_id: str,
        settled: Callable[[ErrorCode], None],
        *,
        offsets: Sequence[OffsetRecord] = (),
        group: Sequence[GroupValue | None] = (),
    ) -> None:
        """Appends offsets of a group and then its own record, where there is one."""
        try:
            records = _encode(group_id, offsets, group)
        except GroupRecordMalformed as failure:
            settled(failure_code(failure))
            return
        partition = self.partition_for(group_id)
        write = self._writes.begin(partition)
        self.offsets.admit(group_id, write, offsets)

        def done(failure: Exception | None) -> None:
            self.offsets.settle(group_id, write, durable=failure is None)
            settled(failure_code(failure))
            self._writes.end(write)

        self._log.append(partition, records, done)

    def when_settled(self, group_ids: Iterable[str], callback: Callable[[], None]) -> None:
        """Calls back when everything about these groups that is on its way has arrived."""
        self._writes.when_settled(map(self.partition_for, group_ids), callback)


def _encode(
    group_id: str, offsets: Sequence[OffsetRecord], group: Sequence[GroupValue | None]
) -> list[tuple[bytes, bytes | None]]:
    records = [
        (encode_key(key), None if value is None else encode_offset(value)) for key, value in offsets
    ]
    key = encode_key(GroupKey(group_id))
    records += [(key, None if value is None else encode_group(value)) for value in group]
    return records
