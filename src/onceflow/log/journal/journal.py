"""One ordered journal for all partitions: an append is durable when its group is.

Entries gather in memory; a group is written with one direct synchronous write while the next one
gathers, so one write is shared by all who wait. Exactly one group is in flight: after a crash only
the last can be torn, and what survives is a prefix of one total order. Nothing is ever written
twice: a failed write leaves the disk in an unknown state, so the journal stops for good.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import NamedTuple

from onceflow.errors import InvariantViolated, StoreBusy, StoreFailed
from onceflow.log.jobs import Jobs
from onceflow.log.journal.format import (
    ENTRY_OVERHEAD,
    HEADER_SIZE,
    EntryKind,
    padded,
    seal_group,
    write_entry,
)
from onceflow.log.journal.ring import JournalConfig, Ring
from onceflow.log.quarantine import Quarantine
from onceflow.runtime import Disk, DurableWrite, JobLane

_FIRST_ARENA = 1 << 16


class JournalStart(NamedTuple):
    """Where recovery begins to read: the place and the ancestor of the first group it needs."""

    incarnation: int
    sequence: int
    file: int
    file_size: int
    position: int
    previous_crc: int


class JournalTotals(NamedTuple):
    """How much a journal has written since it was opened: each group was one synchronous write."""

    groups: int
    bytes: int


class Ticket:
    """Completes when the group that holds an append is durable, or has failed."""

    __slots__ = ("_callbacks", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self._callbacks: list[Callable[[Exception | None], None]] = []

    def add_done_callback(self, callback: Callable[[Exception | None], None]) -> None:
        """Calls `callback(error)` once done; at once when that has been."""
        if self.done:
            callback(self.error)
        else:
            self._callbacks.append(callback)

    def complete(self, error: Exception | None = None) -> None:
        """Runs all callbacks, even when one of them raises; raises its error afterwards."""
        self.done = True
        self.error = error
        callbacks, self._callbacks = self._callbacks, []
        raised: Exception | None = None
        for callback in callbacks:
            try:
                callback(error)
            except Exception as failure:
                raised = raised or failure
        if raised is not None:
            raise raised


class _Arena:
    """Page-aligned memory in which a group is put together (direct writes need the alignment)."""

    __slots__ = ("_memory", "view")

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size)
        self.view = memoryview(self._memory)

    def grown(self, used: int, size: int) -> _Arena:
        larger = _Arena(max(size, 2 * len(self.view)))
        larger.view[:used] = self.view[:used]
        return larger


class _Group:
    """Entries that become durable together, with their effects then."""

    __slots__ = ("arena", "effects", "entry_count", "length", "ticket", "urgent")

    def __init__(self, arena: _Arena) -> None:
        self.arena = arena
        self.length = HEADER_SIZE
        self.entry_count = 0
        self.urgent = False
        self.effects: list[Callable[[], None]] = []
        self.ticket = Ticket()


class Journal:
    """Gathers entries, writes groups, completes tickets. Belongs to one thread."""

    def __init__(
        self,
        disk: Disk,
        jobs: Jobs,
        config: JournalConfig,
        incarnation: int,
        may_take: Callable[[int], bool],
        on_failure: Callable[[Exception], None],
        on_file_full: Callable[[], None],
        after_group: Callable[[], None],
        quarantine: Quarantine,
    ) -> None:
        self._jobs = jobs
        self._config = config
        self._on_failure = on_failure
        self._on_file_full = on_file_full
        self._after_group = after_group
        self._ring = Ring(disk, jobs, config, may_take, self.kick_soon, quarantine)
        self._incarnation = incarnation
        self._sequence = 1
        self._previous_crc = 0
        self._spare = _Arena(_FIRST_ARENA)
        self._gathering = _Group(_Arena(_FIRST_ARENA))
        self._in_flight: _Group | None = None
        self._written_bytes = 0
        self._kick_due = False
        self.failure: Exception | None = None
        self.lacks_room = False
        """A group waits for room in the files of the ring, and nothing has changed there since."""

    @property
    def start(self) -> JournalStart:
        """Where the group after the last durable one goes: the start of a recovery from now."""
        if self._in_flight is not None:
            raise InvariantViolated("journal-start-is-known-only-between-groups")
        ring = self._ring
        return JournalStart(
            self._incarnation,
            self._sequence,
            ring.current.number,
            ring.current.size,
            ring.position,
            self._previous_crc,
        )

    @property
    def totals(self) -> JournalTotals:
        """Of the groups that are durable."""
        return JournalTotals(
            self._sequence - 1 - (self._in_flight is not None), self._written_bytes
        )

    @property
    def is_between_groups(self) -> bool:
        """Whether no group is in flight."""
        return self._in_flight is None

    @property
    def is_idle(self) -> bool:
        """Whether everything gathered so far is durable."""
        return self._in_flight is None and not self._gathering.entry_count

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the group that gathers."""
        return self._gathering.length

    def make_room(self, payload: int) -> None:
        """Raises, or sees to it that `gather` cannot fail for an entry of that size. One without a
        payload is never refused: it deletes something, and must not be done by half."""
        group = self._gathering
        if payload and group.entry_count and group.length + payload > self._config.gathered_bytes:
            # It may wait for room on the disk that has come since, or be lazy all through.
            self.flush()
            raise StoreBusy(f"{group.length} bytes already wait for the journal; try again soon")
        end = group.length + ENTRY_OVERHEAD + payload
        if end > len(group.arena.view):
            group.arena = group.arena.grown(group.length, padded(end))

    def gather(
        self,
        kind: EntryKind,
        key: bytes,
        offset: int,
        payload: memoryview,
        *,
        urgent: bool,
        effect: Callable[[], None],
    ) -> Ticket:
        """Adds an entry to the order, after `make_room`. `effect` runs when it is durable, before
        the ticket's callbacks; an entry that is not urgent waits for one that is, or `flush`."""
        group = self._gathering
        group.length = write_entry(group.arena.view, group.length, kind, key, offset, payload)
        group.entry_count += 1
        group.effects.append(effect)
        if urgent:
            group.urgent = True
            if self._in_flight is None:
                self.kick_soon()
        return group.ticket

    def flush(self) -> Ticket:
        """Makes all that has been gathered urgent; the ticket of its last group."""
        group = self._gathering
        if not group.entry_count:
            return self._in_flight.ticket if self._in_flight else _completed()
        group.urgent = True
        self.kick_soon()
        return group.ticket

    def release(self, start: JournalStart) -> list[str]:
        """A durable checkpoint covers the groups before this start; the files that may go."""
        return self._ring.release(start.sequence, start.file)

    def kick_soon(self) -> None:
        """Writes the waiting group after the owner's current step, whose other entries join it."""
        if self._in_flight is None and not self._kick_due:
            self._kick_due = True
            self.lacks_room = False
            self._jobs.soon(self._kick)

    def _kick(self) -> None:
        self._kick_due = False
        group = self._gathering
        if self._in_flight is not None or self.failure is not None or not group.urgent:
            return
        before = self._ring.current
        place = self._ring.place(group.length)
        if place is None:
            self.lacks_room = True
            self._on_file_full()
            return
        file, position = place
        self._in_flight = group
        self._gathering = _Group(self._spare)
        self._previous_crc = seal_group(
            group.arena.view[: group.length],
            incarnation=self._incarnation,
            sequence=self._sequence,
            file=file.number,
            position=position,
            previous_crc=self._previous_crc,
            entry_count=group.entry_count,
        )
        # `release` keeps the file until a checkpoint has passed this group.
        file.last_sequence = self._sequence
        self._sequence += 1
        if self._ring.current is not before:
            self._on_file_full()
        data = group.arena.view[: padded(group.length)]
        write = DurableWrite(file.file, position, data)
        self._jobs.submit(JobLane.JOURNAL, write, self._written)

    def _written(self, error: Exception | None) -> None:
        group = self._in_flight
        if group is None or self.failure is not None:
            return
        if error is not None:
            self.fail(error)
            return
        self._in_flight = None
        self._written_bytes += padded(group.length)
        self._spare = group.arena
        # Effects first: a waiter that reads on its ticket must find its batch below the high
        # watermark. Then the checkpoint that is due: only here, with no group in flight, is the
        # state exactly that of the last durable group.
        for effect in group.effects:
            effect()
        self._after_group()
        # The next write may block this thread, and the answers of this group are to leave before:
        # so what the callbacks append asks for it behind them. Nor is it begun here: `submit` may
        # have called this, and the next group's ticket would be completed before this one's.
        self._kick_due = True
        try:
            group.ticket.complete()
        finally:
            self._kick_due = False
            if self._gathering.urgent:
                self.kick_soon()

    def close_files(self) -> None:
        """Gives the descriptors back; nothing may be under way."""
        self._ring.close_files()

    def fail(self, error: Exception) -> None:
        """Stops for good and fails every open ticket. Never retried: after a failed write or sync
        the disk's content is unknown, and a second success would prove nothing."""
        if self.failure is not None:
            return
        self.failure = error
        failed = (
            [self._gathering] if self._in_flight is None else [self._in_flight, self._gathering]
        )
        self._on_failure(error)
        for group in failed:
            group.ticket.complete(StoreFailed(f"not known to be durable: {error}"))


def _completed() -> Ticket:
    ticket = Ticket()
    ticket.complete()
    return ticket
