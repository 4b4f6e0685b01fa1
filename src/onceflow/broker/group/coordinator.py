"""The group coordinator as the handlers see it: requests in, answers or promises of them out.

Membership is decided by the pure machine in `onceflow.group`; a request that has to wait is parked
here under a ticket. Commits are seen by readers, and requests that changed the log are answered,
when the log says that the records are durable. `replay` and `loaded` bring everything back from the
log through the same fold; no request may come before `loaded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from onceflow.broker.requests import Answer, AnswerPromise
from onceflow.group import (
    AppendTicket,
    CommitRequest,
    EmptinessStored,
    FoundOffsets,
    Group,
    GroupConfig,
    GroupDependencies,
    GroupDriver,
    GroupProblem,
    GroupState,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    OffsetEntry,
    OffsetKey,
    OffsetQuery,
    OffsetRecord,
    OffsetValue,
    SyncRequest,
    SyncResult,
    TxnCommitRequest,
    check_commit,
    check_delete,
    check_txn_commit,
    empty_value_of,
    ignore,
    is_metadata_too_long,
    look_up,
    machine,
)
from onceflow.records import StoredBatch
from onceflow.types import TopicPartition
from onceflow.wire import LONGEST_STRING, ErrorCode, ProducerIdAndEpoch

T = TypeVar("T")
R = TypeVar("R")

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class OffsetsAdmission(Protocol):
    """The transaction coordinator, as far as offsets ask it."""

    def enter_offsets(
        self, transactional_id: str, identity: ProducerIdAndEpoch, group_id: str, version: int
    ) -> ErrorCode:
        """Whether a TxnOffsetCommit of this version may write offsets of the group in the
        transaction, which may grow by it."""
        ...


class GroupHost(Protocol):
    """What the handlers of the group APIs need."""

    @property
    def groups(self) -> GroupService: ...


class GroupOutcome(NamedTuple):
    """The answer to a request about several things: one error for all, or one for each."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


class GroupService:
    """All groups of a broker."""

    __slots__ = (
        "_clock",
        "_config",
        "_driver",
        "_is_closed",
        "_joins",
        "_rand",
        "_syncs",
        "_tickets",
        "_topic_exists",
        "_writer",
    )

    def __init__(self, config: GroupConfig, dependencies: GroupDependencies) -> None:
        self._config = config
        self._clock = dependencies.clock
        self._rand = dependencies.rand
        self._topic_exists = dependencies.topic_exists
        self._driver = GroupDriver(config, dependencies, self._answer)
        self._writer = self._driver.writer
        self._tickets = count()
        # Requests that wait, by the tickets under which the machine knows them.
        self._joins: dict[int, AnswerPromise[JoinResult]] = {}
        self._syncs: dict[int, AnswerPromise[SyncResult]] = {}
        self._is_closed = False

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that keeps a group."""
        return self._writer.partition_for(group_id)

    # --- recovery and the end -----------------------------------------------------------------

    def replay(self, partition: int, batch: StoredBatch) -> Sequence[GroupProblem]:
        """One batch of a partition, in that log's order; the records that cannot be applied."""
        return self._driver.replay(partition, batch)

    def loaded(self) -> None:
        """Ends the replay: requests may come, and members' sessions run."""
        self._driver.loaded()

    def close(self) -> None:
        """Answers all waiting members. Offsets can still be read."""
        self._is_closed = True
        self._driver.close()

    # --- membership ---------------------------------------------------------------------------

    def join(self, request: JoinRequest) -> Answer[JoinResult]:
        """JoinGroup."""
        refusal = self._refusal(request.group_id) or self._check_session_timeout(request)
        if refusal:
            return JoinResult(refusal, request.member_id)
        known = self._driver.find(request.group_id)
        if known is None and request.member_id:
            return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        turn = self._driver.turn()
        group = known or Group(request.group_id, state_since_ms=turn.now_ms)
        new_id = _member_id(request.group_instance_id or request.client_id, self._rand.uuid4())
        ticket = next(self._tickets)
        promise = self._joins[ticket] = AnswerPromise()
        machine.join(group, request._replace(ticket=ticket, new_member_id=new_id), turn)
        if known is None and (group.members or group.pending):
            self._driver.add(group)
            turn.store(empty_value_of(group), EmptinessStored())
        self._driver.perform(group, turn)
        return promise

    def _check_session_timeout(self, request: JoinRequest) -> ErrorCode:
        low = self._config.group_min_session_timeout_ms
        high = self._config.group_max_session_timeout_ms
        is_allowed = low <= request.session_timeout_ms <= high
        return ErrorCode.NONE if is_allowed else ErrorCode.INVALID_SESSION_TIMEOUT

    def sync(self, request: SyncRequest) -> Answer[SyncResult]:
        """SyncGroup."""
        refusal = self._refusal(request.group_id)
        if refusal:
            return SyncResult(refusal)
        group = self._driver.find(request.group_id)
        if group is None:
            return SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        ticket = next(self._tickets)
        promise = self._syncs[ticket] = AnswerPromise()
        turn = self._driver.turn()
        machine.sync(group, request._replace(ticket=ticket), turn)
        self._driver.perform(group, turn)
        return promise

    def heartbeat(self, group_id: str, identity: MemberIdentity, generation: int) -> ErrorCode:
        """Heartbeat."""
        refusal = self._refusal(group_id)
        if refusal:
            return refusal
        group = self._driver.find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        turn = self._driver.turn()
        error = machine.heartbeat(group, identity, generation, turn)
        self._driver.perform(group, turn)
        return error

    def leave(self, group_id: str, identities: Sequence[MemberIdentity]) -> Answer[GroupOutcome]:
        """LeaveGroup; if that empties the group, answered when the log has it."""
        refusal = self._refusal(group_id)
        if refusal:
            return GroupOutcome(refusal)
        group = self._driver.find(group_id)
        if group is None:
            return GroupOutcome(ErrorCode.NONE, (ErrorCode.UNKNOWN_MEMBER_ID,) * len(identities))
        turn = self._driver.turn()
        errors = machine.leave(group, identities, turn)
        self._driver.perform(group, turn)
        return self._once_settled([group_id], lambda: GroupOutcome(ErrorCode.NONE, errors))

    def _refusal(self, group_id: str) -> ErrorCode:
        if self._is_closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID

    def _answer(self, ticket: int, result: JoinResult | SyncResult) -> None:
        if isinstance(result, JoinResult):
            self._joins.pop(ticket).resolve(result)
        else:
            self._syncs.pop(ticket).resolve(result)

    def _once_settled(self, group_ids: Iterable[str], look: Callable[[], T]) -> Answer[T]:
        promise: AnswerPromise[T] = AnswerPromise()
        self._writer.when_settled(group_ids, lambda: promise.resolve(look()))
        return promise

    # --- offsets ------------------------------------------------------------------------------

    def commit(self, request: CommitRequest) -> Answer[tuple[ErrorCode, ...]]:
        """OffsetCommit: an error code for each entry."""
        errors = self._check_entries(request.entries)
        if all(error is _UNKNOWN for error in errors):
            return errors
        refusal = self._check_commit(request)
        if refusal:
            return _with_error(errors, refusal)
        return self._write_offsets(request.group_id, request.entries, errors)

    def txn_commit(
        self, request: TxnCommitRequest, transactions: OffsetsAdmission
    ) -> Answer[tuple[ErrorCode, ...]]:
        """TxnOffsetCommit: an error code for each entry. What is written waits for a marker."""
        errors = self._check_entries(request.entries)
        if all(error is _UNKNOWN for error in errors):
            return errors
        refusal = self._check_txn_commit(request, transactions)
        if refusal:
            return _with_error(errors, refusal)
        # In the same step as the check, which may have added the partition to the transaction: with
        # a turn in between EndTxn could write the marker first, and the offsets would stay pending.
        return self._write_offsets(request.group_id, request.entries, errors, request.producer)

    def _check_entries(self, entries: Sequence[OffsetEntry]) -> tuple[ErrorCode, ...]:
        return tuple([self._check_entry(entry) for entry in entries])

    def _check_entry(self, entry: OffsetEntry) -> ErrorCode:
        if not self._topic_exists(entry.topic, entry.partition):
            return _UNKNOWN
        if is_metadata_too_long(entry.metadata, self._config.offset_metadata_max_bytes):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _check_commit(self, request: CommitRequest) -> ErrorCode:
        """Whether the group accepts the commit; if so, it also renews the member's session."""
        if self._is_closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self._driver.find(request.group_id)
        error = check_commit(group, request.identity, request.generation, request.version)
        if group is not None and error is ErrorCode.NONE:
            turn = self._driver.turn()
            machine.renew_session_of(group, request.identity.member_id, turn)
            self._driver.perform(group, turn)
        return error

    def _check_txn_commit(
        self, request: TxnCommitRequest, transactions: OffsetsAdmission
    ) -> ErrorCode:
        """Whether the transaction and the group accept the commit; if the transaction does, it has
        the group's partition from here on."""
        group_id, version = request.group_id, request.version
        refusal = self._refusal(group_id) or transactions.enter_offsets(
            request.transactional_id, request.producer, group_id, version
        )
        return refusal or check_txn_commit(
            self._driver.find(group_id), request.identity, request.generation, version
        )

    def _write_offsets(
        self,
        group_id: str,
        entries: Sequence[OffsetEntry],
        errors: Sequence[ErrorCode],
        producer: ProducerIdAndEpoch | None = None,
    ) -> Answer[tuple[ErrorCode, ...]]:
        """Writes the entries that have no error."""
        now_ms = self._clock.wall_ms()
        records = [
            _offset_record(group_id, entry, now_ms)
            for entry, error in zip(entries, errors, strict=True)
            if error is ErrorCode.NONE
        ]
        if not records:
            return tuple(errors)
        if self._driver.find(group_id) is None:
            self._driver.add(Group(group_id, state_since_ms=now_ms))
        promise: AnswerPromise[tuple[ErrorCode, ...]] = AnswerPromise()

        def settled(code: ErrorCode) -> None:
            if code:
                self._driver.forget_if_bare(group_id)
            promise.resolve(_with_error(errors, code))

        self._writer.write(group_id, settled, offsets=records, producer=producer)
        return promise

    def marker_appended(
        self, partition: int, producer_id: int, ticket: AppendTicket, *, commit: bool
    ) -> None:
        """A marker was appended to a partition of `__consumer_offsets`: when it is durable, what
        the producer's transaction has written there is committed or dropped."""
        self._writer.end(partition, producer_id, ticket, commit=commit)

    def fetch(
        self, queries: Sequence[OffsetQuery], *, require_stable: bool
    ) -> Answer[tuple[FoundOffsets, ...]]:
        """OffsetFetch: what each group has committed.

        `require_stable` waits for the commits and markers that are on their way; without it they
        are not seen.
        """

        def look() -> tuple[FoundOffsets, ...]:
            state = self._writer.durable
            return tuple([look_up(state, each, require_stable=require_stable) for each in queries])

        if not require_stable:
            return look()
        return self._once_settled([query.group_id for query in queries], look)

    def delete_offsets(
        self, group_id: str, places: Sequence[TopicPartition]
    ) -> Answer[GroupOutcome]:
        """OffsetDelete: forgets the offsets of topics that the group does not read."""
        exist = [self._topic_exists(place.topic, place.partition) for place in places]
        unknown = [ErrorCode.NONE if each else _UNKNOWN for each in exist]
        if all(unknown):
            return GroupOutcome(ErrorCode.NONE, tuple(unknown))
        group = self._driver.find(group_id)
        refusal = self._refusal(group_id) or check_delete(group)
        if refusal or group is None:
            return GroupOutcome(refusal)
        errors = tuple(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if not error and group.is_subscribed_to(place.topic)
            else error
            for place, error in zip(places, unknown, strict=True)
        )
        known = self._writer.admitted.places(group_id)
        doomed = [
            place
            for place, error in zip(places, errors, strict=True)
            if not error and place in known
        ]
        outcome = GroupOutcome(ErrorCode.NONE, errors)
        if not doomed:
            return outcome
        promise: AnswerPromise[GroupOutcome] = AnswerPromise()

        def settled(code: ErrorCode) -> None:
            promise.resolve(GroupOutcome(code) if code else outcome)

        self._writer.delete(group_id, doomed, settled)
        return promise

    def topic_deleted(self, topic: str) -> None:
        """Deletes all offsets of a deleted topic, so that a new topic of that name has none."""
        for group_id, places in self._writer.admitted.groups_with_topic(topic).items():
            self._writer.delete(group_id, places, ignore)

    # --- administration -----------------------------------------------------------------------

    def find(self, group_id: str) -> Group | None:
        """A group, read-only."""
        return self._driver.find(group_id)

    def all_groups(self) -> Iterator[Group]:
        """Every group, read-only."""
        return self._driver.all_groups()

    def delete_groups(self, group_ids: Sequence[str]) -> Answer[tuple[ErrorCode, ...]]:
        """DeleteGroups: an error code for each."""
        codes = [self._check_group_deletion(group_id) for group_id in group_ids]
        doomed: set[str] = set()
        for at, group_id in enumerate(group_ids):
            group = self._driver.find(group_id)
            if group_id in doomed:
                codes[at] = ErrorCode.GROUP_ID_NOT_FOUND
            elif group is not None and codes[at] is ErrorCode.NONE:
                doomed.add(group_id)
                self._driver.delete(group, partial(codes.__setitem__, at))
        return self._once_settled(group_ids, lambda: tuple(codes))

    def _check_group_deletion(self, group_id: str) -> ErrorCode:
        if self._is_closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self._driver.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP


def _member_id(prefix: str, unique: UUID) -> str:
    """An id for a new member, which begins with what it calls itself, as far as there is room."""
    ending = f"-{unique}"
    room = LONGEST_STRING - len(ending)
    if len(prefix) * 4 > room:  # as bytes it may not fit
        prefix = prefix.encode()[:room].decode(errors="ignore")
    return prefix + ending


def _with_error(errors: Sequence[ErrorCode], code: ErrorCode) -> tuple[ErrorCode, ...]:
    """The codes of entries after something went wrong with all that reached the group."""
    return tuple([each if each is _UNKNOWN or not code else code for each in errors])


def _offset_record(group_id: str, entry: OffsetEntry, now_ms: int) -> OffsetRecord:
    value = OffsetValue(entry.offset, entry.leader_epoch, entry.metadata or "", now_ms)
    return OffsetKey(group_id, entry.topic, entry.partition), value
