"""One batch, one transaction: begin, let the tasks write, check, commit with ledger and offsets.

Any failure leads to a new epoch, in which all tasks run again: at once while the query is active,
else at the next start. A commit that is refused or not answered counts neither as done nor as
failed: the coordinator is asked again, and so is the ledger. A driver that is fenced stops; it
never fences its successor.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onceflow.client import (
    AbortableError,
    BlockingCluster,
    BrokerError,
    ClientError,
    FatalProducerError,
    Fenced,
    OffsetToCommit,
    OpenTransaction,
    ProducerState,
    TransactionClient,
    UnknownOutcome,
)
from onceflow.runtime import RealClock, RealRand
from onceflow.spark.errors import (
    BatchFailed,
    BatchTimedOut,
    CommitUnclear,
    ReportsWrong,
    SinkError,
    SinkFenced,
)
from onceflow.spark.sink import task_plan
from onceflow.spark.sink.claims import ClaimBook, TargetOwner
from onceflow.spark.sink.hanging_transactions import HangingTransactions
from onceflow.spark.sink.ledger import (
    LedgerEntry,
    LedgerStart,
    LedgerStep,
    LedgerVerdict,
    Planned,
    WriterEpoch,
    decide,
    last_batch,
    seen_by,
)
from onceflow.spark.sink.options import SinkOptions
from onceflow.spark.sink.task_plan import ALL_ROWS, Report
from onceflow.spark.sink.topics import SinkTopics
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode

TRIES: Final = 3
"""So often a batch is tried within one start of the query."""
TIMEOUTS: Final = 2
"""So often it may take longer than its transaction."""
_QUICKLY_MS: Final = 2000
_LONGEST_LINE: Final = 500
_LONGEST_TEXT: Final = 3000
_OPEN: Final = (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR)
_NOT_ALLOWED: Final = (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

_log = logging.getLogger("onceflow.spark")


class JobFailed(SinkError):
    """The tasks of a batch did not all succeed; its cause is what Spark raised."""


def brief(error: BaseException) -> str:
    """Without the stack of the JVM, which fills pages."""
    text = str(error).split("\n\tat ")[0].strip()
    return f"{type(error).__name__}: {text[:_LONGEST_TEXT]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """What is to be written, and how."""

    planned: Planned
    source_offsets: Mapping[TopicPartition, int]
    run: Callable[[OpenTransaction], list[Report]]
    """Lets the tasks write under the transaction."""
    is_wanted: Callable[[], bool]
    """False once the query is stopped."""
    start: LedgerStart | None = None
    """What the checkpoint says of the ledger; None for a frame that has no checkpoint."""


class BatchWriter:
    """Writes the batches of one run of a query, one after the other.

    Its transactions have connections of their own. Topics, and what hangs in them, share others
    with the threads that answer tasks: the end of a transaction must not wait for a broker that a
    late task asks for.
    """

    def __init__(self, options: SinkOptions, *, offsets_retention_ms: int) -> None:
        settings = options.settings
        self.options = options
        self._identity = options.identity
        self._settings = settings
        self._offsets_retention_ms = offsets_retention_ms
        self._clock = RealClock()
        self._client = TransactionClient(settings)
        self._cluster = BlockingCluster(
            settings.bootstrap_servers, settings, self._clock, RealRand()
        )
        self._hanging = HangingTransactions(self._cluster, options)
        self.topics = SinkTopics(self._cluster, options, before_use=self._end_hanging_transactions)
        self.book = ClaimBook()
        self._entry: LedgerEntry | None = None
        """What the ledger has, of whatever query."""
        self._is_entry_current = False
        self._own_entries: tuple[LedgerEntry | None, ...] = ()
        """The last one, and the one before, which is seen until the commit has its markers."""
        self._own_last: WriterEpoch | None = None
        """The epoch of this driver's last commit, else the one before its first."""
        self._opened: OpenTransaction | None = None
        self._adopted_by: str | None = None

    def close(self) -> None:
        self._client.close()
        self._cluster.close()

    # --- the ledger -----------------------------------------------------------------------------

    def peek_ledger(self) -> LedgerEntry | None:
        """What the ledger says now. Fences no writer, and one under way may still change it."""
        return self._read(require_stable=False)

    def take_over(self) -> None:
        """Fences every other writer of this name, ends what they left open, and only then reads
        what is committed."""
        # In this order. InitProducerId makes the coordinator forget how the last transaction ended;
        # before it a predecessor may still commit, so a ledger that is read earlier proves nothing.
        self._hanging.remember()
        mine = self._client.init()
        partitions = self.topics.refresh().partitions()
        entry = self._read(require_stable=False)
        self._hanging.end_all(mine, partitions, entry, own=None)
        self._load_entry()
        self._own_last = WriterEpoch(mine.producer_id, mine.producer_epoch - 1)

    def adopt(self, query_id: str) -> None:
        """Makes the ledger of another query this one's: what that one committed does not count."""
        self._adopted_by = query_id
        if self._is_entry_current:
            self._load_entry()

    def _load_entry(self) -> None:
        self._entry = self._read(require_stable=True)
        self._own_entries = (self._entry,)
        self._is_entry_current = True

    def _read(self, *, require_stable: bool) -> LedgerEntry | None:
        ledger = self._identity.ledger
        committed = self._client.committed_offsets(
            self._identity.ledger_group, [ledger], require_stable=require_stable
        )[ledger]
        return None if committed is None else LedgerEntry.from_metadata(committed.metadata)

    def _counted(self, query_id: str) -> LedgerEntry | None:
        entry = seen_by(query_id, self._entry)
        return None if self._is_taken_over(entry) else entry

    def _is_taken_over(self, entry: LedgerEntry | None) -> bool:
        return entry is not None and self._adopted_by not in (None, entry.query_id)

    def _begin_ledger(self, job: BatchJob) -> int:
        """Commits the first entry and writes the note, where `LedgerStart` asks for it."""
        start, planned = job.start, job.planned
        if start is None:
            return 0
        if self._next_step(start, planned) is LedgerStep.BEGIN:
            self._commit_beginning(planned)
        entry = self._counted(planned.query_id)
        if entry is not None and self._next_step(start, planned) is LedgerStep.NOTE:
            start.write_note(entry, planned.batch_id)
        return 0

    def _next_step(self, start: LedgerStart, planned: Planned) -> LedgerStep:
        entry = self._counted(planned.query_id)
        return start.next_step(
            entry, planned.batch_id, is_retention_known=self._offsets_retention_ms > 0
        )

    def _commit_beginning(self, planned: Planned) -> None:
        opened = self._opened = self._client.begin()  # offsets need no right to write
        self.book.open(_writer_of(opened))
        self.book.close()  # it has no tasks
        entry = LedgerEntry.begun(planned, _writer_of(opened), self._entry)
        self._commit_ledger(entry)
        self._commit()
        self._remember_commit(entry)

    def _remember_commit(self, entry: LedgerEntry) -> None:
        self._own_entries = self._entry, entry
        self._entry, self._is_entry_current, self._own_last = entry, True, entry.writer

    @property
    def committed_rows(self) -> int:
        """Of the batch that was committed last."""
        batch = last_batch(self._entry)
        return 0 if batch is None else batch.rows

    def group_offsets(
        self, partitions: Iterable[TopicPartition], *, require_stable: bool
    ) -> dict[TopicPartition, int]:
        """The committed source offsets of this name, of partitions that have any."""
        committed = self._client.committed_offsets(
            self._identity.group, partitions, require_stable=require_stable
        )
        return {partition: each.offset for partition, each in committed.items() if each is not None}

    # --- a batch --------------------------------------------------------------------------------

    def write(self, job: BatchJob) -> int | None:
        """The number of rows; None when the batch is committed already, and was not run.

        Raises `LedgerConflict`, `SinkFenced`, `BatchFailed`, `BatchTimedOut`, `CommitUnclear`, and
        `JobFailed` when it failed and the query is not wanted any more.
        """
        if self._try(job, self._begin_ledger) is None:
            return None
        # Fences again: in the older protocol each transaction has to check who holds the id.
        return self._try(job, self._attempt)

    def _try(self, job: BatchJob, work: Callable[[BatchJob], int]) -> int | None:
        """One transaction, tried as often as it makes sense; None when the batch is committed."""
        timeouts, left, known = 0, TRIES, self.topics.names
        while True:
            if self._fence_and_decide(job.planned, job.start) is LedgerVerdict.SKIP:
                self._log_skipped(job.planned)
                return None
            began = self._clock.monotonic()
            try:
                return work(job)
            except (JobFailed, ReportsWrong, AbortableError) as error:
                self._abort(job, error)
                is_late = (self._clock.monotonic() - began) * 1000 >= self._timeout_ms
                timeouts += is_late
                # In the older protocol each try may end at a topic that rows name and that is not
                # in its transaction. It is in the next one; rows name so many and no more.
                has_grown = not self.topics.may_grow and not self.topics.names <= known
                known |= self.topics.names
                left -= not has_grown
                self._raise_if_hopeless(job, error, left, timeouts)
                self._log_retry(job.planned, error, left)
            except FatalProducerError as error:
                raise self._fenced(error) from error

    def _fence_and_decide(self, planned: Planned, start: LedgerStart | None) -> LedgerVerdict:
        """Raises `LedgerConflict`, or `SinkFenced`."""
        try:
            self._ensure_fenced()
        except FatalProducerError as error:
            raise self._fenced(error) from error
        # Only after the ledger was read: a driver that slept in between would else take an old
        # plan for a young one, and an expired ledger for one that never had an entry.
        now_ms = self._clock.wall_ms()
        entry = self._counted(planned.query_id)
        # An adopted ledger is not empty: another query's batch lies over what this one had begun,
        # and the group's offsets have shown that nothing of this one was committed.
        if start is not None and not self._is_taken_over(seen_by(planned.query_id, self._entry)):
            planned = planned._replace(known_ms=start.known_ms(planned.batch_id))
        return decide(entry, planned, now_ms, self._offsets_retention_ms)

    def _ensure_fenced(self) -> None:
        """Makes sure that no other driver can commit under this name, and that the entry is the
        one that counts.

        A refused commit may have been done all the same: the ledger says so. In the older protocol
        a batch begins with a new epoch, and so with a check of who holds the id. After a long rest
        brokers may have dropped the id, the ledger, and any driver that came in between: so the id
        is renewed only here, before the ledger decides anything."""
        if self._is_entry_current and self._client.needs_renewal:
            self._client.renew()
            self._load_entry()
        if self._opened is not None and not self._opened.has_own_epoch:
            is_used = self._opened.identity == self._client.identity
            if is_used and self._is_entry_current and self.peek_ledger() not in self._own_entries:
                raise self._fenced(
                    Fenced("batches were committed that this driver has not written")
                )
            if is_used:
                # Never `init`: it would fence a successor that is rightly at work.
                self._client.renew()
                self._load_entry()
        if not self._is_entry_current:
            self._load_entry()

    @property
    def _timeout_ms(self) -> int:
        return self._settings.transaction_timeout_ms

    def _attempt(self, job: BatchJob) -> int:
        layout = self.topics.refresh()
        # Never without a partition: only then does an abort go to the coordinator, whose answer
        # says whether this driver is fenced.
        opened = self._client.begin(layout.partitions() or (self._identity.ledger,))
        self._opened = opened
        self.topics.may_grow = opened.has_own_epoch
        self._end_hanging_transactions(layout.partitions())
        self.book.open(_writer_of(opened))
        try:
            reports = job.run(replace(opened, claims=()))
        except Exception as error:
            raise JobFailed(brief(error)) from error
        finally:
            self.book.close()
        rows = check_reports(reports, self.book.owners)
        task_plan.reached("before offsets")
        planned = job.planned
        entry = LedgerEntry(
            planned.query_id, planned.batch_id, planned.digest, rows, _writer_of(opened)
        )
        self._commit_offsets(job, entry)
        task_plan.reached("before EndTxn")
        self._commit()
        task_plan.reached("after EndTxn")
        self._remember_commit(entry)
        return rows

    def _end_hanging_transactions(self, partitions: Sequence[TopicPartition]) -> None:
        """Before tasks write to these partitions under the epoch that is open."""
        self._hanging.end_all(self._client.identity, partitions, self._entry, own=self._own_last)

    def _commit_offsets(self, job: BatchJob, entry: LedgerEntry) -> None:
        ends = {partition: OffsetToCommit(end) for partition, end in job.source_offsets.items()}
        self._client.commit_offsets(self._identity.group, ends)
        self._commit_ledger(entry)

    def _commit_ledger(self, entry: LedgerEntry) -> None:
        # The metadata counts. The offset must not be below 0: brokers would return none at all.
        ledger = OffsetToCommit(max(0, entry.batch_id), entry.to_metadata())
        self._client.commit_offsets(self._identity.ledger_group, {self._identity.ledger: ledger})

    def _commit(self) -> None:
        self._is_entry_current = False
        try:
            self._client.commit()
        except UnknownOutcome:
            try:
                self._client.resolve()
            except UnknownOutcome as error:
                raise CommitUnclear(
                    f"{error}. The broker could not be reached for too long; when the query is "
                    "started again, the ledger says whether the batch was committed"
                ) from error

    # --- failures -------------------------------------------------------------------------------

    def _abort(self, job: BatchJob, error: SinkError | ClientError) -> None:
        """Aborts the transaction; of a query that was stopped only if that takes a moment."""
        if not job.is_wanted():
            self._abort_quickly()
            raise JobFailed(f"the query is not wanted any more ({brief(error)})") from error
        if self._client.state not in _OPEN:
            return
        try:
            self._client.abort()
        except FatalProducerError as fatal:
            raise self._fenced(fatal) from fatal
        except AbortableError as unanswered:
            raise BatchFailed(
                f"the batch failed ({brief(error)}) and could not be aborted: {unanswered}. Start "
                "the query again when the broker can be reached"
            ) from error

    def _abort_quickly(self) -> None:
        """Consumers of the output wait for an open transaction, so it is better aborted than left
        to time out; but stopping a query must not take long."""
        if self._opened is None or self._client.state not in _OPEN:
            return
        # Over connections of its own: those of the query may be waiting for a broker.
        hasty = replace(
            self._settings, delivery_timeout_ms=_QUICKLY_MS, request_timeout_ms=_QUICKLY_MS
        )
        with TransactionClient.of(self._opened, hasty) as client:
            try:
                client.abort()
            except ClientError:
                return  # the next start, or time, ends it

    def _raise_if_hopeless(
        self, job: BatchJob, error: SinkError | ClientError, left: int, timeouts: int
    ) -> None:
        batch = f"batch {job.planned.batch_id}"
        final = [each.message for each in self.book.failures if each.is_final]
        if final:
            raise BatchFailed(f"{batch} cannot be written: {final[0]}") from error
        if timeouts >= TIMEOUTS:
            raise BatchTimedOut(
                f"{batch} took longer than its transaction may last ({self._timeout_ms} ms), "
                f"{timeouts} times. Give transaction_timeout_ms more (the broker's "
                "transaction.max.timeout.ms is the limit), or make batches smaller "
                f"(maxOffsetsPerTrigger). The last error was {brief(error)}"
            ) from error
        cause = error.__cause__
        is_forbidden = isinstance(cause, BrokerError) and cause.code in _NOT_ALLOWED
        if left == 0 or is_forbidden:
            messages = [each.message for each in self.book.failures] or [brief(error)]
            tries = "" if is_forbidden else f" after {TRIES} tries"
            raise BatchFailed(f"{batch} could not be written{tries}: {messages[0]}") from error

    def _log_retry(self, planned: Planned, error: SinkError | ClientError, left: int) -> None:
        message = next((each.message for each in self.book.failures), brief(error))
        which = self._opened and _epoch_text(_writer_of(self._opened))
        _log.warning(
            "batch %s of %r failed, its transaction (%s) is aborted, and it is written again; "
            "tries left: %s. What failed: %s",
            planned.batch_id,
            self._identity.name,
            which or "none was begun",
            left,
            " ".join(message.split())[:_LONGEST_LINE],
        )

    def _log_skipped(self, planned: Planned) -> None:
        entry = last_batch(self._entry)
        _log.warning(
            "batch %s of %r is skipped: it was committed before, in the transaction of %s",
            planned.batch_id,
            self._identity.name,
            "an earlier run" if entry is None else _epoch_text(entry.writer),
        )

    def _fenced(self, error: FatalProducerError) -> SinkError:
        if isinstance(error, Fenced):
            return SinkFenced(
                f"{error}. Another driver writes as {self._identity.name!r}, or, with a broker of "
                "the older protocol, a transaction timed out. This query stops; what it had not "
                "committed is written by the other one, or at the next start"
            )
        return BatchFailed(f"{error}. Start the query again: the ledger says what was committed")


def _writer_of(opened: OpenTransaction) -> WriterEpoch:
    return WriterEpoch(opened.producer_id, opened.producer_epoch)


def _epoch_text(writer: WriterEpoch) -> str:
    return f"producer id {writer.producer_id}, epoch {writer.producer_epoch}"


# --- what the tasks report -----------------------------------------------------------------------


def check_reports(reports: Iterable[Report], owners: Mapping[int, TargetOwner]) -> int:
    """The number of rows; raises `ReportsWrong`.

    Each output partition was written by the one attempt that owns it, from sequence 0 and without a
    gap. Each task wrote as many rows as it received. Every task that claimed a partition reported.
    """
    all_reports = list(reports)
    received = {
        TargetOwner(each.attempt, each.task): each.rows
        for each in all_reports
        if each.target == ALL_ROWS
    }
    written = [each for each in all_reports if each.target != ALL_ROWS]
    problems = [*_owners(written, owners), *_sequences(written)]
    tasks = Counter(owner.task for owner in received)
    problems += [f"task {task} has reported twice" for task, times in tasks.items() if times > 1]
    problems += [
        f"task {owner.task} has claimed partitions and reported nothing"
        for owner in set(owners.values()) - received.keys()
    ]
    sums: Counter[TargetOwner] = Counter()
    for each in written:
        sums[TargetOwner(each.attempt, each.task)] += each.rows
    problems += [
        f"task {owner.task} was given {received.get(owner, 0)} rows and wrote {sums[owner]}"
        for owner in received.keys() | sums.keys()
        if received.get(owner, 0) != sums[owner]
    ]
    if problems:
        raise ReportsWrong("; ".join(sorted(problems)))
    return sum(received.values())


def _owners(written: Iterable[Report], owners: Mapping[int, TargetOwner]) -> Iterable[str]:
    seen: set[int] = set()
    for each in written:
        if each.target in seen:
            yield f"target {each.target} is reported twice"
        seen.add(each.target)
        if owners.get(each.target) != TargetOwner(each.attempt, each.task):
            yield f"target {each.target} was written by attempt {each.attempt}, not by its owner"


def _sequences(written: Iterable[Report]) -> Iterable[str]:
    for each in written:
        if each.last_sequence != each.rows - 1:
            yield (
                f"target {each.target} has {each.rows} rows and ends at sequence "
                f"{each.last_sequence}"
            )
