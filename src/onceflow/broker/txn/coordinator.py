"""The transaction coordinator as the handlers see it: requests in, answers or promises of them out.

The pure functions in `onceflow.txn` decide, the store carries the decision out, and the answer
waits until it is durable. Only the adding of partitions is answered at once: the transaction's
records and offsets come behind it in the journal, so if any of them is durable, it is durable too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from onceflow.broker.config import BrokerConfig
from onceflow.broker.requests import Answer, or_hang_up
from onceflow.broker.topics import POLICIES
from onceflow.broker.txn.state_store import TransactionDependencies, TransactionStateStore
from onceflow.errors import OnceflowError
from onceflow.group import failure_code
from onceflow.log import Purpose
from onceflow.txn import (
    Decision,
    Finish,
    Persist,
    ProducerIdRequest,
    Rejected,
    Result,
    TransactionLimits,
    TransactionMetadata,
    TransactionState,
    code_for,
    machine,
)
from onceflow.types import TopicPartition
from onceflow.wire import (
    IMPLICIT_OFFSETS_FROM,
    IMPLICIT_PRODUCE_FROM,
    TRANSACTION_V2,
    ApiKey,
    ErrorCode,
    ProducerIdAndEpoch,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)


class TransactionService:
    """Belongs to the broker's loop."""

    def __init__(
        self,
        config: BrokerConfig,
        dependencies: TransactionDependencies,
        store: TransactionStateStore,
    ) -> None:
        self._config = config
        self._limits = TransactionLimits(
            max_timeout_ms=config.transaction_max_timeout_ms,
            max_partitions_per_transaction=config.max_transaction_partitions,
            two_phase_commit_enabled=config.transaction_two_phase_commit_enable,
        )
        self._clock = dependencies.clock
        self._topics = dependencies.topics
        self._ids = dependencies.ids
        self._ensure_offsets_partition = dependencies.ensure_offsets_partition
        self._store = store

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """One transactional id, read-only."""
        return self._store.find(transactional_id)

    def all(self) -> Iterator[TransactionMetadata]:
        """Every transactional id, read-only."""
        return self._store.all()

    def partitions_of(self, transaction: TransactionMetadata) -> Iterable[TopicPartition]:
        """All partitions of an open transaction; for one that is ending, those without a marker."""
        if transaction.state is TransactionState.ONGOING:
            return transaction.partitions
        return self._store.lacking_markers(transaction)

    def once_durable(self, looked_at: Iterable[TransactionMetadata], response: T) -> Answer[T]:
        """A response about these transactions, once no crash can undo what it says."""
        tickets = [each for one in looked_at for each in self._store.tickets(one.transactional_id)]
        return or_hang_up(tickets, response)

    # --- requests -----------------------------------------------------------------------------

    def init_producer_id(self, request: ProducerIdRequest, version: int) -> Answer[Result]:
        """InitProducerId."""
        transactional_id = request.transactional_id or ""
        known = self._store.find(transactional_id)
        if transactional_id and known is None and self._is_full():
            return Result(error=ErrorCode.POLICY_VIOLATION)

        def decide() -> Decision:
            return machine.init_producer_id(
                self._store.find(transactional_id),
                request,
                now_ms=self._clock.wall_ms(),
                limits=self._limits,
                new_producer_id=self._ids.take,
            )

        def take_over() -> Result:
            result = self._do(decide())
            now = self._store.find(transactional_id)
            if result.error is not ErrorCode.CONCURRENT_TRANSACTIONS or now is None:
                return result
            # What was open has been aborted to its last marker, in this very step. A client that
            # had to ask again would wait first, librdkafka for half a second, and the owner that
            # was fenced could come back meanwhile and begin another transaction.
            return self._do(decide()) if now.is_idle else result

        return self._serve(transactional_id, take_over, ApiKey.INIT_PRODUCER_ID, version)

    def end(
        self, transactional_id: str, identity: ProducerIdAndEpoch, commit: bool, version: int
    ) -> Answer[Result]:
        """EndTxn."""
        if not transactional_id:
            return Result(error=ErrorCode.INVALID_REQUEST)

        def end() -> Result:
            return self._do(
                machine.end(
                    self._store.find(transactional_id),
                    identity,
                    commit,
                    version=version,
                    now_ms=self._clock.wall_ms(),
                    new_producer_id=self._ids.take,
                )
            )

        return self._serve(transactional_id, end, ApiKey.END_TXN, version)

    def _serve(
        self, transactional_id: str, do: Callable[[], Result], api: ApiKey, version: int
    ) -> Answer[Result]:
        """Calls `do`, and answers when everything that the answer depends on is durable."""
        try:
            result = do()
        except OnceflowError as error:
            _log.warning("%s for %r failed: %s", api.name, transactional_id, error)
            code = failure_code(error)
            if code is ErrorCode.COORDINATOR_NOT_AVAILABLE and not transactional_id:
                # Also retriable, but a client without a transactional id has no coordinator to
                # look for again.
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            result = Result(error=code)
        result = result._replace(error=code_for(result.error, api, version))
        # Refusals and repeats wait too: they rest on earlier decisions that a crash could undo. A
        # producer id that is answered too early could be given to a second producer.
        return or_hang_up([*self._ids.tickets, *self._store.tickets(transactional_id)], result)

    def _do(self, decision: Decision) -> Result:
        if isinstance(decision, Rejected):
            return Result(error=decision.code)
        if isinstance(decision, Persist):
            self._store.write(decision.transaction, Purpose.APPEND)
        elif isinstance(decision, Finish):
            self._store.finish(decision)
        return decision.result

    def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        places: Sequence[TopicPartition],
        version: int,
    ) -> dict[TopicPartition, ErrorCode]:
        """AddPartitionsToTxn: all of them, or none. `add_offsets` and `enter_offsets` add the
        partition of a group."""
        own = [each for each in places if each.topic in POLICIES]
        refused = dict.fromkeys(own, ErrorCode.TOPIC_AUTHORIZATION_FAILED) | self._unknown(places)
        if refused:
            return dict.fromkeys(places, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused
        code = self._add(transactional_id, identity, places, client_version=0)
        return dict.fromkeys(places, code_for(code, ApiKey.ADD_PARTITIONS_TO_TXN, version))

    def _unknown(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """The error for each partition that does not exist."""
        return {
            each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for each in places
            if self._topics.partition(*each) is None
        }

    def add_offsets(
        self, transactional_id: str, identity: ProducerIdAndEpoch, group_id: str, version: int
    ) -> ErrorCode:
        """AddOffsetsToTxn."""
        try:
            place = self._ensure_offsets_partition(group_id)
        except OnceflowError as error:
            code = failure_code(error)
        else:
            code = self._add(transactional_id, identity, [place], client_version=0)
        return code_for(code, ApiKey.ADD_OFFSETS_TO_TXN, version)

    def verify_partitions(
        self, transactional_id: str, identity: ProducerIdAndEpoch, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether the producer's open transaction has these partitions."""
        unknown = self._unknown(places)
        if unknown:
            return dict.fromkeys(places, ErrorCode.OPERATION_NOT_ATTEMPTED) | unknown
        return self._verify(transactional_id, identity, places)

    def _verify(
        self, transactional_id: str, identity: ProducerIdAndEpoch, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        if not transactional_id:
            return dict.fromkeys(places, ErrorCode.INVALID_REQUEST)
        return dict(machine.verify(self._store.find(transactional_id), identity, places))

    # --- before something is appended in a transaction ----------------------------------------

    def is_closed_to_writes(self, producer_id: int) -> bool:
        """Whether a partition has to ask before it appends more of this producer's transaction,
        even where that is open."""
        return self._store.is_closed_to_writes(producer_id)

    def enter(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        place: TopicPartition,
        version: int,
    ) -> ErrorCode:
        """Admits a transaction's first batch in a partition; `version` is that of Produce."""
        code = self._enter(transactional_id, identity, place, version >= IMPLICIT_PRODUCE_FROM)
        return code_for(code, ApiKey.PRODUCE, version)

    def enter_offsets(
        self, transactional_id: str, identity: ProducerIdAndEpoch, group_id: str, version: int
    ) -> ErrorCode:
        """Admits offsets of a group; `version` is that of TxnOffsetCommit."""
        try:
            place = self._ensure_offsets_partition(group_id)
        except OnceflowError as error:
            code = failure_code(error)
        else:
            implicitly = version >= IMPLICIT_OFFSETS_FROM
            code = self._enter(transactional_id, identity, place, implicitly)
        return code_for(code, ApiKey.TXN_OFFSET_COMMIT, version)

    def _enter(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        place: TopicPartition,
        implicitly: bool,
    ) -> ErrorCode:
        if implicitly:
            return self._add(transactional_id, identity, [place], client_version=TRANSACTION_V2)
        return self._verify(transactional_id, identity, [place])[place]

    def _add(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        places: Iterable[TopicPartition],
        *,
        client_version: int,
    ) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        known = self._store.find(transactional_id)
        decision = machine.add_partitions(
            known,
            identity,
            places,
            now_ms=self._clock.wall_ms(),
            limits=self._limits,
            client_version=client_version,
        )
        if isinstance(decision, Rejected):
            if decision.code is ErrorCode.POLICY_VIOLATION:
                _log.warning(
                    "refused to add to the transaction of %r: max.transaction.partitions is %d",
                    transactional_id,
                    self._limits.max_partitions_per_transaction,
                )
            return decision.code
        if isinstance(decision, Persist):
            if known is not None and known.is_idle and self._are_too_many_open(transactional_id):
                return ErrorCode.POLICY_VIOLATION
            try:
                # No client awaits it. It must precede the records that it admits: behind them,
                # a crash could leave records of a transaction that no start knows to end.
                self._store.write(decision.transaction, Purpose.TRANSACTION_GROWS)
            except OnceflowError as error:
                return failure_code(error)
        return ErrorCode.NONE

    # --- limits and age -----------------------------------------------------------------------

    def _is_full(self) -> bool:
        limit = self._config.max_transactional_ids
        if len(self._store) < limit:
            return False
        _log.warning("refused a new transactional id: max.transactional.ids is %d", limit)
        return True

    def _are_too_many_open(self, transactional_id: str) -> bool:
        limit = self._config.max_open_transactions
        if self._store.open_count < limit:
            return False
        _log.warning(
            "refused a transaction of %r: max.open.transactions is %d", transactional_id, limit
        )
        return True

    def expire(self) -> Iterator[None]:
        """Forgets transactional ids that have expired; to be run in slices."""
        return self._store.expire(self._config.transactional_id_expiration_ms)

    def close(self) -> None:
        """Stops all timeouts."""
        self._store.close()
