"""The front door of the logs: every change of every partition, in one durable order.

Decide, persist, apply: a change is admitted (applied to memory and page cache, so that the next one
is judged against it) and takes its place in the journal. Its ticket completes when that place is
durable, and only then does the high watermark follow. `logs` and a log's start are as admitted: a
handler waits for the ticket before it answers. A failed journal write or sync stops the store for
good. All calls come from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from onceflow.errors import (
    DiskExhausted,
    DiskFailed,
    DiskFull,
    LogCorrupt,
    LogExists,
    OffsetOutsideLog,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    UnknownLog,
)
from onceflow.log.checkpoint import PATH, Checkpoint, Durability, read_checkpoint
from onceflow.log.checkpointer import Checkpointer
from onceflow.log.compaction import Compactor
from onceflow.log.config import LogConfig
from onceflow.log.jobs import Jobs
from onceflow.log.journal import (
    DIRECTORY as JOURNAL,
    ENTRY_OVERHEAD,
    EntryKind,
    Journal,
    JournalConfig,
    JournalEntry,
    JournalTotals,
    Ticket,
    write_layout,
)
from onceflow.log.partition_log import Creation, PartitionLog, is_log_directory
from onceflow.log.quarantine import FailedJob, Quarantine
from onceflow.log.recovery import Recovered, recover, recovery_is_durable, remove_directory
from onceflow.log.segments import MOST_FILES, OpenFiles
from onceflow.log.urgency import Purpose, is_urgent, may_use_reserve
from onceflow.records import StoredBatch
from onceflow.runtime import Background, Disk, File, Rand
from onceflow.types import LogId

_LOOK_AGAIN_BYTES = 8 << 20


class Space:
    """Room on the data disk, with a reserve for entries that must never be refused. Asks the disk
    now and then, not for every append."""

    def __init__(self, disk: Disk, reserve_bytes: int) -> None:
        self._disk = disk
        self._reserve = reserve_bytes
        self._left = 0

    def free_bytes(self) -> int:
        """Free bytes beyond the reserve; negative when the reserve is touched."""
        return self._disk.free_bytes() - self._reserve

    def take(self, size: int) -> None:
        """Raises `DiskFull` when there is no room for `size` bytes beyond the reserve."""
        self._left -= size
        if self._left >= 0:
            return
        free = self.free_bytes()
        if free < size:
            raise DiskFull(
                f"{free + self._reserve} bytes are free on the data disk and {self._reserve} are "
                "kept in reserve; make room, then go on"
            )
        # Others use the disk too: look again before half of what is left has been taken.
        self._left = min((free - size) // 2, _LOOK_AGAIN_BYTES)


_LOCK = "lock"
_RETENTION = "retention"
_ROLL = "roll of an old segment"
_RETAINED_TOGETHER = 32
"""Logs; one that has expired as a whole begins a new file."""
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of the whole store."""

    durability: Durability = Durability.FSYNC
    log: LogConfig = field(default_factory=LogConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    reserve_bytes: int = 16 << 20
    """Appends are refused when less is free: the room for entries that must never be refused."""
    os_checkpoint_bytes: int = 1 << 30
    """With `durability="os"`: how much is appended between two checkpoints."""
    open_files: int = MOST_FILES
    """Of segments; the journal and jobs in the background have some more."""


class LogStore:
    """Opened by `LogStore.open`; `logs` are the partition logs there are."""

    def __init__(
        self,
        disk: Disk,
        jobs: Jobs,
        config: StoreConfig,
        recovered: Recovered,
        incarnation: int,
        lock: File,
        on_failure: Callable[[Exception], None],
        quarantine: Quarantine,
    ) -> None:
        self._disk = disk
        self._jobs = jobs
        self._config = config
        self._catalog = recovered.catalog
        self._on_failure = on_failure
        self.quarantine = quarantine
        self.report = recovered.report
        self.failure: Exception | None = None
        self._is_closed = False
        self._lock = lock
        self._space = Space(disk, config.reserve_bytes)
        self._unsynced = 0
        self._creation = _completed()  # without a journal: of the last log that was made
        self._durable = dict(recovered.catalog.logs)
        self._journal: Journal | None = None
        if config.durability is Durability.FSYNC:
            self._journal = Journal(
                disk,
                jobs,
                config.journal,
                incarnation,
                may_take=lambda size: self._space.free_bytes() >= size,
                on_failure=self._fail,
                on_file_full=self._request_checkpoint,
                after_group=self._after_group,
                quarantine=quarantine,
            )
        self._compactor = Compactor(
            disk, jobs, self._space.free_bytes, self._request_checkpoint, quarantine, self._fail
        )
        self._checkpointer = Checkpointer(
            disk,
            jobs,
            config.durability,
            incarnation,
            self._journal,
            self._durable,
            quarantine,
            self._fail,
            self._compactor.checkpointed,
        )
        self._checkpointer.deleted += recovered.deleted
        self.limit_open_files: Callable[[int], None] = lambda most: None
        """Limits how many segment files may be open from now on."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        background: Background,
        rand: Rand,
        config: StoreConfig,
        on_failure: Callable[[Exception], None] = lambda _: None,
        on_failed_job: Callable[[FailedJob], None] = lambda _: None,
    ) -> LogStore:
        """Recovers the logs on the disk. Raises `LogCorrupt`, `NewerFormat` or `PathInUse`, each
        with nothing changed. `on_failure` gets the error that stops the store, `on_failed_job` each
        failure that does not."""
        lock = disk.lock(_LOCK)
        try:
            found = read_checkpoint(disk)
            checkpoint = found or _first_checkpoint(disk)
            files = OpenFiles(disk, config.open_files)
            recovered = recover(disk, files, checkpoint, config.log, is_first=found is None)
            # Unpredictable: a client that knew it could send a record that looks like a group.
            incarnation = int.from_bytes(rand.randbytes(8), "big")
            quarantine = Quarantine(on_failed_job)
            jobs = Jobs(background)
            store = cls(disk, jobs, config, recovered, incarnation, lock, on_failure, quarantine)
            # Before the first append: this names the new incarnation. With the old one, a recovery
            # would not find the groups that are acknowledged from here on.
            store._checkpointer.write_now()
            recovery_is_durable(disk)
            files.on_crowded = partial(store._jobs.soon, store._request_checkpoint)
            store.limit_open_files = files.limit
        except BaseException:
            lock.close()
            raise
        if config.durability is Durability.OS and disk.exists(JOURNAL):
            remove_directory(disk, JOURNAL)  # all of it is in the logs now
        return store

    @property
    def logs(self) -> dict[LogId, PartitionLog]:
        return self._catalog.logs

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """How large the data disk is, and how much of it is free."""
        return self._disk.total_bytes(), self._disk.free_bytes()

    @property
    def waiting_bytes(self) -> int:
        """Bytes gathered for the journal that no write has taken yet: a measure of pressure."""
        return self._journal.gathered_bytes if self._journal is not None else 0

    @property
    def journal_totals(self) -> JournalTotals | None:
        """How much the journal has written; None without one."""
        return self._journal.totals if self._journal is not None else None

    # --- changes ------------------------------------------------------------------------------

    def append(
        self, log: PartitionLog, batch: StoredBatch, *, purpose: Purpose = Purpose.APPEND
    ) -> Ticket:
        """Appends a batch whose base offset is `log.end_offset`. `DiskExhausted`, `StoreBusy` and
        `StoreFailed` leave no trace."""
        header, data = batch
        size = len(data)
        if self.failure is not None or self._is_closed or log.is_deleted:
            self._check_running(log)
        if not may_use_reserve(purpose):
            self._space.take(size)
        self._make_room(size)
        try:
            mark = log.append(header, data)
        except DiskFailed as error:
            self._fail(error)
            raise
        effect = partial(log.settle, mark)
        ticket = self._order(EntryKind.APPEND, log, header[0], data, purpose, effect)
        return self._once_checkpointed(ticket) if purpose is Purpose.METADATA else ticket

    def create(self, topic: str, log_ids: Iterable[LogId]) -> Ticket:
        """Makes empty logs for partitions of a topic: all of them, or none and an error."""
        self._check_running()
        self._space.take(0)
        wanted, name = list(log_ids), memoryview(topic.encode())
        self._make_room(len(wanted) * (ENTRY_OVERHEAD + len(name)))
        made: list[PartitionLog] = []
        try:
            for log_id in wanted:
                made.append(self._catalog.apply(JournalEntry(EntryKind.CREATE, log_id, 0, name)))
        except (DiskExhausted, LogExists):
            self._undo(made)
            raise
        except DiskFailed as error:
            self._fail(error)
            raise
        ticket = self._order_creations(made, name)
        return ticket if self._journal is not None else self._await_checkpoint(made)

    def _await_checkpoint(self, made: list[PartitionLog]) -> Ticket:
        self._creation = ticket = self._checkpointer.covers_now()
        if not ticket.done:
            for log in made:
                log.creation = Creation(ticket)
            ticket.add_done_callback(partial(_created, made))
        return ticket

    def _undo(self, made: list[PartitionLog]) -> None:
        """Removes new logs whose creation was not ordered."""
        for log in made:
            del self.logs[log.log_id]
            self._disk.unlink(log.active.path("log"))
            self._disk.rmdir(log.directory)

    def _order_creations(self, made: list[PartitionLog], name: memoryview) -> Ticket:
        ticket = _completed()
        for log in made:
            effect = partial(self._durable.__setitem__, log.log_id, log)
            ticket = self._order(EntryKind.CREATE, log, 0, name, Purpose.CREATE, effect)
        return ticket

    def delete(self, logs: Iterable[PartitionLog]) -> Ticket:
        """Deletes all of these logs. Their files go after a checkpoint, which this requests."""
        gone = list(logs)
        for log in gone:
            self._check_running(log)
        ticket = _completed()
        for log in gone:
            self._make_room(0)
            self._catalog.apply(JournalEntry(EntryKind.DELETE, log.log_id, 0, _NOTHING))
            effect = partial(self._deleted, log)
            ticket = self._order(EntryKind.DELETE, log, 0, _NOTHING, Purpose.DELETE, effect)
        return self._then_checkpoint(ticket)

    def _deleted(self, log: PartitionLog) -> None:
        self.quarantine.forget(log.name)
        del self._durable[log.log_id]
        log.close_files()
        self._checkpointer.deleted.append(log)

    def delete_records(self, log: PartitionLog, offset: int) -> Ticket:
        """Moves the log start up to `offset`, at most to the high watermark."""
        self._check_running(log)
        if not 0 <= offset <= log.high_watermark:
            raise OffsetOutsideLog(
                f"records up to {offset} cannot be deleted from {log.name}: the high watermark is "
                f"{log.high_watermark}"
            )
        ticket = self._move_start(log, offset, Purpose.DELETE_RECORDS)
        frees = log.has_droppable
        return self._then_checkpoint(ticket) if frees else self._once_checkpointed(ticket)

    def configure(self, log: PartitionLog, config: LogConfig) -> None:
        """Gives a log its config. The journal orders the layout with the appends, so that a replay,
        which runs before the config is read, cuts the log into the same files."""
        self._check_running(log)
        is_same = config.layout == log.config.layout
        log.config = config
        if is_same:
            return
        log.layout = config.layout
        payload = write_layout(config.layout)
        with suppress(StoreBusy):  # the next checkpoint says it too
            self._make_room(len(payload))
            self._order(EntryKind.LAYOUT, log, 0, payload, Purpose.LAYOUT, _nothing)

    # --- keeping house ------------------------------------------------------------------------

    def enforce_retention(self, now_ms: int) -> None:
        """`retention` in one go."""
        for _ in self.retention(now_ms):
            pass

    def retention(self, now_ms: int) -> Iterator[None]:
        """Moves log starts by the logs' retention settings, some logs at a time, then frees the
        room."""
        news: list[PartitionLog] = []
        logs = iter([log for log in self.logs.values() if log.config.delete])
        while some := list(islice(logs, _RETAINED_TOGETHER)):
            self._check_running()
            for log in some:
                if not log.is_deleted:  # meanwhile
                    self._retain_alone(log, now_ms, news)
            yield
        if news:
            self._then_checkpoint(self.flush())

    def _retain_alone(self, log: PartitionLog, now_ms: int, news: list[PartitionLog]) -> None:
        with suppress(DiskExhausted):  # of one must not keep others from giving room back
            work = partial(self._retain, log, now_ms, news)
            self.quarantine.attempt(_RETENTION, log.name, work, log.directory)

    def _retain(self, log: PartitionLog, now_ms: int, news: list[PartitionLog]) -> None:
        """Adds the log to `news` when there is something for a checkpoint to keep."""
        # Only a log that may lose records by their age needs to know it.
        if log.config.retention_ms >= 0 and log.note_growth(now_ms):
            news.append(log)
        start = log.retained_from(now_ms)
        if start > log.start_offset:
            self._move_start(log, start, Purpose.RETENTION)
            news.append(log)

    def compact(self, now_ms: int) -> None:
        """Closes segments whose age only the clock shows, and starts to compact, in the background,
        the compacted logs that are dirty enough. Call it from time to time."""
        self._check_running()
        for log in [log for log in self._durable.values() if log.ages_by_clock]:
            with suppress(DiskExhausted):  # there may be room the next time
                work = partial(log.roll_aged, now_ms)
                self.quarantine.attempt(_ROLL, log.name, work, log.directory)
        self._compactor.start(self._durable.values(), now_ms)

    def _move_start(self, log: PartitionLog, offset: int, purpose: Purpose) -> Ticket:
        self._make_room(0)
        self._catalog.apply(JournalEntry(EntryKind.LOG_START, log.log_id, offset, _NOTHING))
        effect = partial(log.settle_start, log.start_offset)
        return self._order(EntryKind.LOG_START, log, offset, _NOTHING, purpose, effect)

    def truncate(self, log: PartitionLog, offset: int) -> None:
        """Cuts a log to `offset`, blocking. Unlike all else it destroys bytes in place, so a
        checkpoint that says where the log ends is durable before the cut."""
        self._check_running(log)
        self._quiesce()
        self._compactor.abandon(log)
        mark = log.mark_at(offset)
        self._checkpointer.write_now(cut=(log, mark))
        try:
            for path in log.truncate(mark):
                if self._disk.exists(path):
                    self._disk.unlink(path)
            # Durable before any append: with durability="os" a start reads on from the checkpoint
            # to the last sound batch, and would find the cut records again.
            log.active.file.sync()
            self._disk.sync_dir(log.directory)
        except DiskFailed as error:
            self._fail(error)
            raise

    # --- order and durability -----------------------------------------------------------------

    def _order(
        self,
        kind: EntryKind,
        log: PartitionLog,
        offset: int,
        payload: memoryview,
        purpose: Purpose,
        effect: Callable[[], None],
    ) -> Ticket:
        if self._journal is not None:
            return self._journal.gather(
                kind, log.key, offset, payload, urgent=is_urgent(purpose), effect=effect
            )
        self._unsynced += len(payload)
        if self._unsynced > self._config.os_checkpoint_bytes:
            self._unsynced = 0
            self._request_checkpoint()
        if log.creation is not None and kind is EntryKind.APPEND:
            log.creation.effects.append(effect)
            return log.creation.ticket
        effect()
        return _completed()

    def _make_room(self, payload: int) -> None:
        if self._journal is not None:
            self._journal.make_room(payload)

    def _once_checkpointed(self, ticket: Ticket) -> Ticket:
        """Without a journal only the checkpoint knows which logs there are and where they start:
        one in the background for all changes that wait."""
        return ticket if self._journal is not None else self._checkpointer.covers_now()

    def _then_checkpoint(self, ticket: Ticket) -> Ticket:
        """Requests a checkpoint, which frees the room, as soon as the deletion is durable."""
        if self._journal is None:
            return self._checkpointer.covers_now()
        ticket.add_done_callback(lambda _: self._request_checkpoint())
        return ticket

    def _after_group(self) -> None:
        self._checkpointer.proceed()

    def request_checkpoint(self) -> None:
        """Requests a checkpoint in the background, and retries what found no room."""
        self._check_running()
        self._request_checkpoint()
        if self._journal is not None:
            self._journal.kick_soon()

    def look_again(self) -> None:
        """Retries what found no room on the disk, or no descriptor."""
        self._check_running()
        self.flush()
        self._checkpointer.look_again()

    def make_durable(self) -> None:
        """Blocks until changes of topics that no journal orders are durable: for a start, before it
        serves any client."""
        if self._journal is None and self._checkpointer.is_awaited:
            self._quiesce()
            self._checkpointer.write_now()

    def _request_checkpoint(self) -> None:
        self._checkpointer.request()

    def flush(self) -> Ticket:
        """Completes when everything so far is durable, lazy entries too; retries what found no
        room."""
        self._check_running()
        if self._journal is not None:
            return self._journal.flush()
        self._checkpointer.proceed()
        return self._creation

    def _quiesce(self) -> None:
        """Blocks until everything so far is durable and no checkpoint is running."""
        self._check_running()
        self._compactor.stop()
        self.flush()
        self._jobs.wait_for_all(also=self._is_settled)
        self._check_running()
        if self._journal is not None and not self._journal.is_idle:
            raise DiskFull(
                f"{self.waiting_bytes} bytes wait for room in the journal, none of them "
                "acknowledged; make room on the data disk"
            )

    def _is_settled(self) -> bool:
        """Whether waiting on would change anything."""
        journal = self._journal
        return self.failure is not None or journal is None or journal.is_idle or journal.lacks_room

    def _check_running(self, log: PartitionLog | None = None) -> None:
        if self._is_closed:
            raise StoreClosed("the store is closed; open it again")
        if log is not None and log.is_deleted:
            raise UnknownLog(f"{log.name} ({log.log_id}) was deleted")
        if self.failure is not None:
            raise StoreFailed(
                f"the store has stopped: {self.failure}. Restart it: it recovers from the disk"
            ) from self.failure

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            if self._journal is not None:
                self._journal.fail(error)
            self._on_failure(error)
            self._checkpointer.fail(error)

    def abandon(self) -> None:
        """Releases the directory without a clean stop: for a start that failed above the store.
        The next start must find it as this one did, so that it, too, reports possible loss."""
        if self._is_closed:
            return
        self._compactor.stop()
        self._checkpointer.stop()
        self._end()

    def close(self) -> None:
        """Stops in order: the next start has nothing to recover. After a failure it only waits for
        the jobs under way, so that this store no longer touches the disk."""
        if self._is_closed:
            return
        try:
            self._compactor.stop()
            if self.failure is None:
                self._quiesce()
                if any(log.creation is not None for log in self.logs.values()):
                    self._checkpointer.write_now()  # what was appended to them counts from then on
                self._checkpointer.stop()  # no checkpoint comes after the clean one
                self._checkpointer.write_now(clean=True)
        finally:
            self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._jobs.wait_for_all()
        self._catalog.close_files()
        if self._journal is not None:
            self._journal.close_files()
        self._lock.close()


def _first_checkpoint(disk: Disk) -> Checkpoint:
    """For a new data directory; refuses one that has logs but lost its checkpoint."""
    logs = [each.name for each in disk.entries(".") if is_log_directory(each.name)]
    if logs:
        raise LogCorrupt(
            f"there is no file {PATH!r}, but there are directories such as {logs[0]!r}: not a data "
            "directory of Onceflow, or its checkpoint was lost; restore it or choose another one"
        )
    return Checkpoint(durability=Durability.FSYNC, incarnation=0, clean=True, journal=None, logs=())


def _nothing() -> None:
    """For an entry that changes nothing when it becomes durable."""


def _created(logs: Iterable[PartitionLog], error: Exception | None) -> None:
    """A checkpoint names them."""
    for log in logs:
        creation, log.creation = log.creation, None
        if creation is not None and error is None:
            for effect in creation.effects:
                effect()


def _completed() -> Ticket:
    ticket = Ticket()
    ticket.complete()
    return ticket
