"""Commits a consumer's offsets: on request, and automatically from time to time.

An automatic commit covers the records returned before the current poll: an application that polls
again is done with those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from onceflow.client.codec import GroupMember, OffsetToCommit
from onceflow.client.errors import (
    Action,
    BrokerError,
    ClientError,
    CommitFailed,
    ConsumerError,
    FencedMember,
    RebalanceInProgress,
)
from onceflow.client.group import (
    Committed,
    GroupMetrics,
    MemberMachine,
    Membership,
    commit,
    committed,
    log_commit_failed,
    log_committed,
)
from onceflow.client.net import Cluster, retrying_each
from onceflow.client.settings import ConsumerSettings
from onceflow.runtime import Rand
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode

_KINDS: Mapping[Action, type[ConsumerError]] = {
    Action.REJOIN: RebalanceInProgress,
    Action.CATCH_UP: CommitFailed,
    Action.JOIN_ANEW: CommitFailed,
    Action.FATAL: FencedMember,
}

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Commits:
    """The commits of one consumer with a group. `positions` returns the offsets that may be
    committed now; `machine` is set while the consumer is subscribed."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        group_id: str,
        positions: Callable[[], Mapping[TopicPartition, int]],
        measured: GroupMetrics,
        rand: Rand,
    ) -> None:
        self.machine: MemberMachine | None = None
        self._cluster = cluster
        self.group_id = group_id
        self._positions = positions
        self._measured = measured
        self._rand = rand
        self._is_automatic = settings.enable_auto_commit
        self._interval_s = settings.auto_commit_interval_ms / 1000
        self._due_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        # One commit at a time: an older offset that arrived later would set the group back.
        self._turn = asyncio.Lock()

    @property
    def member(self) -> GroupMember:
        """The member that commits; raises `CommitFailed` when the group has removed it."""
        machine = self.machine
        if machine is None:
            return GroupMember(self.group_id)
        if machine.failure is not None:
            raise machine.failure
        if not machine.may_commit:
            raise CommitFailed(
                f"this consumer is not in group {self.group_id!r}: {machine.why_out}"
            )
        return machine.metadata

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetToCommit],
        *,
        passes_over_gone: bool = False,
    ) -> None:
        """Returns when the coordinator has stored the offsets. `passes_over_gone` leaves out topics
        that were deleted. Raises `CommitFailed` and its kinds."""
        if not offsets:
            return
        # Taken before the wait: the membership that read these records. If a rebalance comes in
        # between, the coordinator has to refuse the commit, and would not under the new generation.
        member = self.member
        async with self._turn:
            began = self._measured.now()
            try:
                await self._send(member, dict(offsets), passes_over_gone=passes_over_gone)
            except BrokerError as error:
                raise self._failure(error, member) from error
            self._measured.committed(began)
            log_committed(self.group_id, offsets)

    async def _send(
        self,
        member: GroupMember,
        left: dict[TopicPartition, OffsetToCommit],
        *,
        passes_over_gone: bool,
    ) -> None:
        """Until nothing is left."""

        async def attempt(
            partitions: list[TopicPartition],
        ) -> Mapping[TopicPartition, ClientError]:
            asked = {each: left[each] for each in partitions}
            answers = await commit(self._cluster, member, asked)
            errors = {each: error for each, error in answers.items() if error is not None}
            for partition in asked:
                error = errors.get(partition)
                if error is not None and passes_over_gone and error.code in _GONE:
                    log_commit_failed(self.group_id, errors.pop(partition))
                    error = None
                if error is None:
                    del left[partition]
            return errors

        cluster = self._cluster
        policy = cluster.settings.retry
        await retrying_each(attempt, lambda: list(left), cluster.refresh, policy, self._rand)

    def _failure(self, error: BrokerError, member: GroupMember) -> ClientError:
        kind = _KINDS.get(error.action)
        if kind is None:
            return error
        if self.machine is not None:
            self.machine.refused(error, Membership(member.member_id, member.generation))
        elif error.action is not Action.FATAL:
            return CommitFailed(
                f"group {self.group_id!r} has members that subscribed, and only they may commit",
                advice="use another group.id, or subscribe instead of assigning partitions",
            )
        return kind(f"nothing was committed: {error}")

    async def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetToCommit]:
        """What the group has committed of these; those without are left out."""

        async def attempt() -> dict[TopicPartition, OffsetToCommit]:
            answers = await self.ask_committed(partitions)
            errors = [each for each in answers.values() if isinstance(each, ClientError)]
            if errors:
                raise errors[0]
            return {
                partition: each
                for partition, each in answers.items()
                if isinstance(each, OffsetToCommit)
            }

        return await self._cluster.retrying(attempt) if partitions else {}

    async def ask_committed(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, Committed]:
        """The same once, and each for itself."""
        return await committed(self._cluster, self.group_id, partitions)

    # --- by itself ------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Commits in the background if it is time to."""
        if not self._is_automatic or self._task is not None:
            return
        if self._due_at is None:
            self._due_at = now + self._interval_s
        elif now >= self._due_at:
            self._due_at = now + self._interval_s
            offsets = self._positions()
            if offsets:
                self._task = asyncio.get_running_loop().create_task(self._quietly(offsets))

    async def now(self) -> None:
        """Commits before partitions are revoked, if the consumer commits automatically."""
        if self._is_automatic:
            await self._quietly(self._positions())

    async def _quietly(self, positions: Mapping[TopicPartition, int]) -> None:
        """A commit in the background: an error is logged, and the next commit makes up for it."""
        try:
            # A deleted topic must not hold up a rebalance: no member reads it again.
            offsets = {each: OffsetToCommit(at) for each, at in positions.items()}
            await self.commit(offsets, passes_over_gone=True)
        except ClientError as error:
            log_commit_failed(self.group_id, error)
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    def stop(self) -> None:
        """Tells what is under way to end."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Ends what is under way."""
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
