"""Before a batch is written: no transaction of an earlier one may hang where it goes.

One marker ends everything that a producer has open in a partition. If the marker of an earlier
batch is missing there, the next one would commit what was aborted, or abort what was committed. So
`end_all` asks the leaders before tasks write. It writes a missing marker when it is known how that
batch ended; when it is not, the query stops.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from onceflow.client import (
    Backoff,
    BlockingCluster,
    BrokerError,
    ClientError,
    Cluster,
    HangingTransaction,
    ProducerIdentity,
    TransactionDescription,
    TransactionNotFound,
    describe_transaction,
    end_open_transaction,
    find_hanging_transactions,
    offsets_partitions,
)
from onceflow.runtime import RealRand
from onceflow.spark.errors import BatchFailed, EndUnknown
from onceflow.spark.sink.ledger import LedgerEntry, WriterEpoch, begun_entries, last_batch
from onceflow.spark.sink.options import SinkOptions
from onceflow.spark.sink.preflight import run_on_own_thread
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode

_log = logging.getLogger("onceflow.spark")

_COMMITTED: Final = ("PrepareCommit", "CompleteCommit")
_ABORTED: Final = ("PrepareAbort", "CompleteAbort")
_ENDING: Final = ("PrepareCommit", "PrepareAbort")


class Known(NamedTuple):
    """What is known about how earlier batches ended."""

    last: WriterEpoch | None
    """The writer of the last batch in the ledger."""
    is_ledger_whole: bool
    """False while the ledger itself waits for a marker: then a later batch may be committed."""
    before: TransactionDescription | None
    """The transactional id before this driver took it over."""
    begun: tuple[WriterEpoch, ...] = ()
    """Writers that have begun the ledger since, and have written nothing else."""
    own: WriterEpoch | None = None
    """The epoch of this driver's last commit, else the one before its first: no later epoch was
    committed. None until this driver has read the ledger with nothing open."""


def known_by(
    entry: LedgerEntry | None,
    is_ledger_whole: bool,
    before: TransactionDescription | None,
    own: WriterEpoch | None = None,
) -> Known:
    """`entry` is what the ledger has, of whatever query."""
    batch = last_batch(entry)
    begun = tuple(each.writer for each in begun_entries(entry))
    last = None if batch is None else batch.writer
    return Known(last, is_ledger_whole, before, begun, own)


def was_committed(left: HangingTransaction, known: Known) -> bool | None:
    """Whether the batch that left this open was committed; None where nothing says so."""
    writer, last = WriterEpoch(left.producer_id, left.producer_epoch), known.last
    if writer in (last, *known.begun):
        return True
    if last is not None and last.producer_id == writer.producer_id and last > writer:
        return None  # batches were written over it, by a driver that did not look
    if known.is_ledger_whole and (last is not None or _would_be_known(writer, known)):
        return False
    # A ledger without a batch proves nothing: it may have been deleted, or have expired. To abort
    # here would lose rows that the coordinator had committed.
    return _said_before(writer, known.before)


def _would_be_known(writer: WriterEpoch, known: Known) -> bool:
    """Whether the ledger had an entry before this epoch, whose place a batch would have taken; or
    this driver would have committed it itself."""
    witnesses = (*known.begun, *([] if known.own is None else [known.own]))
    return any(each.producer_id == writer.producer_id and each < writer for each in witnesses)


def _said_before(writer: WriterEpoch, before: TransactionDescription | None) -> bool | None:
    """The coordinator knows how the last transaction ended. In the newer protocol it has the epoch
    of the next one by then."""
    if before is None or before.producer_id != writer.producer_id:
        return None
    if before.producer_epoch not in (writer.producer_epoch, writer.producer_epoch + 1):
        return None
    if before.state in _COMMITTED:
        return True
    return False if before.state in _ABORTED else None


class HangingTransactions:
    """Finds and ends them; the threads that answer tasks may use it, too."""

    def __init__(self, cluster: BlockingCluster, options: SinkOptions) -> None:
        self._settings = options.settings
        self._identity = options.identity
        self._policy = options.settings.transactional_retry
        self._cluster = cluster
        self._lock = threading.Lock()
        self._before: TransactionDescription | None = None
        self._kept_at: dict[str, TopicPartition] = {}
        self._hidden: set[str] = set()

    def remember(self) -> None:
        """Must come before InitProducerId, which makes the coordinator forget how the last
        transaction ended."""
        self._before = run_on_own_thread(self._describe())

    def end_all(
        self,
        mine: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        entry: LedgerEntry | None,
        *,
        own: WriterEpoch | None,
    ) -> None:
        """Writes the missing markers of older epochs, in these partitions and in those that hold
        the groups' offsets. `own` is that of `Known`; with it the ledger's entry is final.

        Raises `EndUnknown` when it is not known how a batch ended that is open there.
        """
        with self._lock:
            looked_at = [*partitions, *self._group_partitions()]
            if not self._find(mine, looked_at):
                return
            self._wait_for_coordinator()
            left = self._find(mine, looked_at)
            ledger = self._kept_at.get(self._identity.ledger_group)
            is_whole = all(each.partition != ledger for each in left)
            known = known_by(entry, own is not None or is_whole, self._before, own)
            ends = {each: was_committed(each, known) for each in left}
            unknown = [each for each, commit in ends.items() if commit is None]
            if unknown:
                raise EndUnknown(_advice(unknown))
            for each, commit in ends.items():
                self._end(each, commit=bool(commit))

    def _group_partitions(self) -> Collection[TopicPartition]:
        if not self._kept_at:
            groups = (self._identity.group, self._identity.ledger_group)
            self._kept_at = offsets_partitions(self._cluster, self._policy, groups)
        return self._kept_at.values()

    def _find(
        self, mine: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> tuple[HangingTransaction, ...]:
        hanging = find_hanging_transactions(self._cluster, self._policy, mine, partitions)
        for topic in sorted(hanging.hidden - self._hidden):
            _log.warning(
                "this user may not READ topic %s, so it is not seen whether a transaction was left "
                "open there by a broker that failed",
                topic,
            )
        self._hidden |= hanging.hidden
        return hanging.left

    def _wait_for_coordinator(self) -> None:
        """The coordinator answers a commit before it writes the markers: what hangs now may end by
        itself in a moment."""
        deadline = time.monotonic() + self._policy.total_s
        backoff = Backoff(self._policy, RealRand())
        while (last := run_on_own_thread(self._describe())) is not None and last.state in _ENDING:
            if time.monotonic() > deadline:
                raise BatchFailed(
                    f"the last transaction of {self._identity.transactional_id!r} is still being "
                    f"ended after {self._policy.total_s:.0f} s ({last.state}): some partition has "
                    "no leader. Start the query again when all partitions have one"
                )
            time.sleep(backoff.next_s())

    async def _describe(self) -> TransactionDescription | None:
        """Over connections of its own, like a marker that is written and a topic that is created
        (`preflight.ensure_topic`): these are rare, and messages of the async client only."""
        settings = self._settings
        async with Cluster(settings.bootstrap_servers, settings.cluster()) as cluster:
            try:
                return await describe_transaction(cluster, self._identity.transactional_id)
            except TransactionNotFound:
                return None

    def _end(self, left: HangingTransaction, *, commit: bool) -> None:
        word = "commit" if commit else "abort"
        _log.warning(
            "partition %s has no marker of a transaction that has ended (epoch %d, from offset "
            "%d): its %s is written now",
            left.partition,
            left.producer_epoch,
            left.start_offset,
            word,
        )
        settings = self._settings

        async def write() -> None:
            async with Cluster(settings.bootstrap_servers, settings.cluster()) as cluster:
                await end_open_transaction(
                    cluster, left.partition, left.start_offset, commit=commit
                )

        try:
            run_on_own_thread(write())
        except TransactionNotFound:
            return  # another process was faster
        except ClientError as error:
            raise BatchFailed(_not_ended(left, word, error)) from error


def _not_ended(left: HangingTransaction, word: str, error: ClientError) -> str:
    place = f"offset {left.start_offset} of partition {left.partition}"
    if isinstance(error, BrokerError) and error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return (
            f"a broker has ended a transaction without a marker at {place}, and this user may not "
            f"write its {word}: allow ALTER on the cluster, and start the query again"
        )
    return f"the {word} of the transaction at {place} could not be written: {error}"


def _advice(unknown: Sequence[HangingTransaction]) -> str:
    places = ", ".join(
        f"{each.partition} from offset {each.start_offset} (epoch {each.producer_epoch})"
        for each in unknown
    )
    return (
        "a broker has ended a transaction without its markers, and it is not known whether it was "
        f"committed: {places}. Its coordinator's log (__transaction_state) says which. If it was "
        "aborted, or its rows are in the output already, run `onceflow transactions abort` for "
        "each place and start the query again"
    )
