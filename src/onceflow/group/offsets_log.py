"""The way into `__consumer_offsets`: decisions become records, and readers see what is durable.

One write holds what belongs together in one group; it becomes durable, or fails, as a whole. The
fold is kept twice. The admitted one has everything with a place in the log, and the next decision
looks at it: a deletion must also delete a commit that is still on its way. The durable one follows
when the log reports it, and readers see it. What the log refuses leaves no trace; a write that
fails later stops the broker, and nothing is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Protocol, TypeAlias

from onceflow.errors import (
    DiskError,
    DiskExhausted,
    OnceflowError,
    StoreBusy,
    StoreClosed,
    StoreFailed,
)
from onceflow.group.offsets import OffsetRecord, Offsets, tombstones
from onceflow.group.records import (
    LARGEST_WRITE,
    GroupKey,
    GroupValue,
    OffsetsTooLarge,
    encode_group,
    encode_key,
    encode_offset,
)
from onceflow.records import coordinator_partition
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode, ProducerIdAndEpoch


class Writes:
    """Numbers the writes to each partition, and calls back when all that have begun are over."""

    __slots__ = ("_begun", "_numbers", "_waiters")

    def __init__(self) -> None:
        self._numbers = count()
        self._begun: dict[int, int] = {}
        """The partition of each write that is under way."""
        self._waiters: list[tuple[set[int], Callable[[], None]]] = []

    def begin(self, partition: int) -> int:
        """Begins a write; returns its number."""
        write = next(self._numbers)
        self._begun[write] = partition
        return write

    def end(self, write: int) -> None:
        """A write is durable, or has failed."""
        del self._begun[write]
        ready = []
        for waiter in list(self._waiters):
            missing, callback = waiter
            missing.discard(write)
            if not missing:
                self._waiters.remove(waiter)
                ready.append(callback)
        for callback in ready:
            callback()

    def when_settled(self, partitions: Iterable[int], callback: Callable[[], None]) -> None:
        """Calls back when every write to these partitions that has begun is over; maybe at once."""
        wanted = set(partitions)
        missing = {write for write, partition in self._begun.items() if partition in wanted}
        if missing:
            self._waiters.append((missing, callback))
        else:
            callback()


Change: TypeAlias = Callable[[Offsets], None]
"""A step of the fold, applied to each of the two states."""

_ROOM_FOR_TOPIC = 300
"""The most bytes of an offset's key beside its group's id."""

# What a client gets when its group's records could not be written: an error that makes it try
# again, one that makes it look for another coordinator, or (the default) one that is final.
_FAILURES: tuple[tuple[tuple[type[Exception], ...], ErrorCode], ...] = (
    ((StoreBusy, DiskExhausted), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ((StoreFailed, StoreClosed, DiskError), ErrorCode.NOT_COORDINATOR),
    ((OffsetsTooLarge,), ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
)


class AppendTicket(Protocol):
    """An append that is under way."""

    def add_done_callback(self, callback: Callable[[Exception | None], None], /) -> None:
        """Calls back on this thread, perhaps at once: with None when the append is durable, else
        with the error."""
        ...


class OffsetsLog(Protocol):
    """The partitions of `__consumer_offsets`."""

    def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        producer: ProducerIdAndEpoch | None,
    ) -> tuple[int, AppendTicket]:
        """Appends keys and values (None: a tombstone) as one batch, in a producer's transaction if
        one is given; returns the first offset. An `OnceflowError` means that nothing was appended.

        Tickets complete in the order of the appends.
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


def ignore(code: ErrorCode) -> None:
    """For writes that no request waits for: the next attempt will find what failed."""


class OffsetsWriter:
    """Writes records of groups, and keeps the offsets in step with the log."""

    __slots__ = ("_log", "_partitions", "_writes", "admitted", "durable")

    def __init__(self, log: OffsetsLog, partitions: int) -> None:
        self._log = log
        self._partitions = partitions
        self._writes = Writes()
        self.admitted = Offsets()
        self.durable = Offsets()

    def partition_for(self, group_id: str) -> int:
        """The partition that keeps a group."""
        return coordinator_partition(group_id, self._partitions)

    def replay(self, change: Change) -> None:
        """Applies something that is in the log already."""
        change(self.admitted)
        change(self.durable)

    def write(
        self,
        group_id: str,
        settled: Callable[[ErrorCode], None],
        *,
        offsets: Sequence[OffsetRecord] = (),
        group: Sequence[GroupValue | None] = (),
        producer: ProducerIdAndEpoch | None = None,
    ) -> None:
        """Appends offsets of a group and then the group's own record, if there is one."""
        partition = self.partition_for(group_id)
        try:
            records = _encode(group_id, offsets, group)
            first, ticket = self._log.append(partition, records, producer)
        except OnceflowError as failure:
            settled(failure_code(failure))
            return
        producer_id = None if producer is None else producer.producer_id

        def change(state: Offsets) -> None:
            for at, (key, value) in enumerate(offsets, first):
                state.apply(partition, at, key, value, producer_id)

        self._admit(partition, ticket, change, settled)

    def delete(
        self,
        group_id: str,
        places: Sequence[TopicPartition],
        settled: Callable[[ErrorCode], None],
        *,
        with_group: bool = False,
    ) -> None:
        """Appends tombstones for offsets of a group, and behind them one for the group. If they are
        too many for one write, they go part by part, until the log refuses one."""
        part = max(LARGEST_WRITE // (len(group_id.encode()) + _ROOM_FOR_TOPIC), 1)
        last = max(len(places) - 1, 0) // part * part
        refused: list[ErrorCode] = []
        for start in range(0, last, part):
            records = tombstones(group_id, places[start : start + part])
            self.write(group_id, refused.append, offsets=records)
            if any(refused):
                settled(max(refused))
                return
        records = tombstones(group_id, places[last:])
        self.write(group_id, settled, offsets=records, group=[None] if with_group else ())

    def end(self, partition: int, producer_id: int, ticket: AppendTicket, *, commit: bool) -> None:
        """Applies a marker that has its place in a partition."""

        def change(state: Offsets) -> None:
            state.end(partition, producer_id, commit=commit)

        self._admit(partition, ticket, change, ignore)

    def _admit(
        self,
        partition: int,
        ticket: AppendTicket,
        change: Change,
        settled: Callable[[ErrorCode], None],
    ) -> None:
        # After the append, which may raise, and in the same step: the next decision must count this
        # write, though readers and answers wait until it is durable.
        write = self._writes.begin(partition)
        change(self.admitted)

        def done(failure: Exception | None) -> None:
            if failure is None:
                change(self.durable)
            settled(failure_code(failure))
            # Last: this calls back readers that wait for stable offsets, and they read `durable`.
            self._writes.end(write)

        ticket.add_done_callback(done)

    def when_settled(self, group_ids: Iterable[str], callback: Callable[[], None]) -> None:
        """Calls back when all writes about these groups that have begun are over."""
        self._writes.when_settled(map(self.partition_for, group_ids), callback)


def _encode(
    group_id: str, offsets: Sequence[OffsetRecord], group: Sequence[GroupValue | None]
) -> list[tuple[bytes, bytes | None]]:
    records: list[tuple[bytes, bytes | None]] = []
    size = 0
    for about, offset in offsets:
        key, value = encode_key(about), None if offset is None else encode_offset(offset)
        size += len(key) + len(value or b"")
        if size > LARGEST_WRITE:
            raise OffsetsTooLarge(
                f"{len(offsets)} offsets of one group make more than {LARGEST_WRITE} bytes"
            )
        records.append((key, value))
    key = encode_key(GroupKey(group_id))
    records += [(key, None if each is None else encode_group(each)) for each in group]
    return records
