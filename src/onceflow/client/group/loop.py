"""Runs a group member: it joins in one task, and sends heartbeats in another.

Neither task assigns or revokes partitions: `take` returns the result of a join when the task that
polls asks for it. A member whose application does not poll for `max.poll.interval.ms` leaves the
group, and logs that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from onceflow.client.assignors import ASSIGNORS
from onceflow.client.codec import (
    NO_GENERATION,
    ConsumerProtocolSubscription,
    read_assignment,
    write_assignment,
)
from onceflow.client.errors import Action, AnswerMalformed, ClientError, action_for
from onceflow.client.group.events import (
    log_heartbeat_refused,
    log_joined,
    log_leave_failed,
    log_left,
    log_missing_topics,
    log_overslept,
    log_rejoining,
    log_watch_failed,
)
from onceflow.client.group.member import MemberMachine
from onceflow.client.group.metrics import GroupMetrics
from onceflow.client.group.requests import Joined, beat, join, leave, sync
from onceflow.client.group.subscription import (
    Subscription,
    meant_topics,
    missing_topics,
    partition_counts,
)
from onceflow.client.net import Backoff, Cluster
from onceflow.client.settings import ConsumerSettings
from onceflow.errors import MessageMalformed
from onceflow.runtime import Rand
from onceflow.types import TopicPartition

_AGAIN: Final = (Action.RETRY, Action.REFRESH, Action.REJOIN)
_LOST: Final = (Action.CATCH_UP, Action.JOIN_ANEW)
_LOOK_AGAIN_S: Final = 1.0
"""While a topic that was named does not exist."""


class MemberAssignment(NamedTuple):
    """What a join has brought."""

    partitions: frozenset[TopicPartition]
    subscription: Subscription
    """What was wanted when the member asked."""
    generation: int


class OwnedPartitions(NamedTuple):
    """What a member brings along when it joins, and since when it has that."""

    partitions: Collection[TopicPartition] = ()
    generation: int = NO_GENERATION


class _Shared(NamedTuple):
    """What the leader knew when it shared out the topics of the group."""

    names: frozenset[str]
    counts: Mapping[str, int]


class GroupLoop:
    """Made for one consumer that has subscribed. `on_news` is called when `take` or the machine has
    something new for the user's task."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        machine: MemberMachine,
        rand: Rand,
        on_news: Callable[[], None],
        measured: GroupMetrics,
    ) -> None:
        self.machine = machine
        self.measured = measured
        self.subscription = Subscription()
        self._cluster = cluster
        self._settings = settings
        self._rand = rand
        self._on_news = on_news
        self._join: asyncio.Task[MemberAssignment | None] | None = None
        self._heart: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._shared: _Shared | None = None
        """None for all but the leader."""
        self._topics: frozenset[str] = frozenset()
        """What was wanted at the last join."""
        self._looked_for: Subscription | None = None
        """The subscription for which it last logged what is not there."""
        self._polled_at = inf
        self.is_over = False
        """It was left: nothing is begun here any more."""
        self.crash: BaseException | None = None
        """Why the heartbeats have stopped, until a poll has raised it."""

    # --- for the user's task --------------------------------------------------------------------

    @property
    def is_joining(self) -> bool:
        """Whether there is, or will be, something to take."""
        return self._join is not None

    @property
    def has_result(self) -> bool:
        return self._join is not None and self._join.done()

    @property
    def _is_asking(self) -> bool:
        return self._join is not None and not self._join.done()

    def polling(self) -> None:
        """The user polls, and `polled` is called when that ends."""
        self._polled_at = inf

    def polled(self) -> None:
        """The user has what they polled for, and has to come back in time."""
        self._polled_at = asyncio.get_running_loop().time()

    def start_join(self, held: OwnedPartitions) -> None:
        """Joins, in the background; `take` has the result."""
        if self.is_over:
            return
        self._join = asyncio.get_running_loop().create_task(self._joining(held))
        self._join.add_done_callback(lambda _: self._on_news())
        if self._heart is None or self._heart.done():
            self._heart = asyncio.get_running_loop().create_task(self._beating())
            self._heart.add_done_callback(self._note_crash)

    def _note_crash(self, heart: asyncio.Task[None]) -> None:
        """Raises an unexpected exception in the next poll: it is a defect, and must not be lost."""
        if not heart.cancelled() and heart.exception() is not None:
            self.crash = heart.exception()
            self.machine.outdated()  # the next join has a heart again
            self._on_news()

    def take(self) -> MemberAssignment | None:
        """What a join has brought, once; None when there is nothing new. Raises what ended it."""
        done = self._join
        if done is None or not done.done():
            return None
        self._join = None
        assignment = done.result()
        # Meanwhile the member may be out again: then it has nothing of that.
        is_current = (
            assignment is not None and assignment.generation == self.machine.membership.generation
        )
        return assignment if is_current else None

    def wants(self, subscription: Subscription) -> None:
        """Another subscription: the group has to hear of it."""
        if subscription != self.subscription:
            self.subscription = subscription
            self.machine.outdated()

    async def leave(self, why: str) -> None:
        """Out of the group, and everything here ends. Static members say nothing: they keep what
        they have for as long as their session lasts."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._say_goodbye(why)

    def stop(self) -> None:
        """Tells everything here to end: at once no heart beats any more, whatever comes next."""
        self.is_over = True
        for task in self._tasks:
            task.cancel()

    @property
    def _tasks(self) -> list[asyncio.Task[Any]]:
        return [each for each in (self._join, self._heart, self._watch) if each is not None]

    async def _say_goodbye(self, why: str) -> None:
        member = self.machine.metadata
        self.machine.left(why)
        if not member.member_id:
            return
        stays = member.instance_id is not None
        log_left(member, why, stays=stays)
        if stays:
            return
        try:
            await leave(self._cluster, member, why)
        except ClientError as error:
            log_leave_failed(member, error)

    # --- joining --------------------------------------------------------------------------------

    async def _joining(self, held: OwnedPartitions) -> MemberAssignment | None:
        """None when the membership was lost on the way: what was held has to be given up first."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._cluster.settings.retry, self._rand)
        failing_since: float | None = None
        began = self.measured.now()
        while True:
            self.machine.asked()
            try:
                assignment = await self._join_once(held)
                self.measured.rebalanced(began)
                return assignment
            except BaseException as error:
                self.measured.rebalance_failed()
                if not isinstance(error, ClientError):  # cancelled, or a defect
                    self.machine.join_ended()
                    raise
                action = self.machine.join_refused(error)
                if action in _LOST:
                    return None
                failing_since = failing_since or loop.time()
                pause = backoff.next_s()
                limit = failing_since + self._cluster.settings.retry.total_s
                if action not in _AGAIN or (action is not Action.REJOIN and loop.time() > limit):
                    raise self.machine.failure or error from error
                if action is Action.REFRESH:
                    self._cluster.forget_coordinator(self.machine.group_id)
                log_rejoining(self.machine, error)
            await asyncio.sleep(pause)

    async def _join_once(self, held: OwnedPartitions) -> MemberAssignment:
        wanted = self.subscription
        topics = await meant_topics(self._cluster, wanted)
        subscription = ConsumerProtocolSubscription(
            topics=tuple(topics), owned=tuple(held.partitions), generation=held.generation
        )
        machine, cluster, measured = self.machine, self._cluster, self.measured
        began = measured.now()
        while True:
            answer = await join(
                cluster, self._settings, machine.metadata, subscription, "wants to read"
            )
            if isinstance(answer, Joined):
                break
            machine.named(answer.member_id)
        machine.joined(answer.membership)
        measured.joined(began)
        log_joined(machine, answer)
        assignments = await self._share_out(answer)
        began = measured.now()
        data = await sync(cluster, machine.metadata, answer.strategy, assignments)
        partitions = _assigned(machine.group_id, data)
        measured.synced(began)
        machine.synced()
        self._watch_from_now(wanted, topics)
        return MemberAssignment(partitions, wanted, answer.membership.generation)

    async def _share_out(self, answer: Joined) -> dict[str, bytes]:
        """What everybody gets, from the leader; nothing from the others."""
        self._shared = None
        if not answer.is_leader:
            return {}
        names = frozenset(topic for member in answer.members for topic in member.topics)
        counts = await partition_counts(self._cluster, names)
        self._shared = _Shared(names, counts)
        if answer.skips_assignment:
            return {}
        assignments = ASSIGNORS[answer.strategy].assign(counts, answer.members)
        return {member_id: write_assignment(each) for member_id, each in assignments.items()}

    # --- heartbeats -----------------------------------------------------------------------------

    async def _beating(self) -> None:
        """Until the member leaves."""
        settings, loop = self._settings, asyncio.get_running_loop()
        interval = settings.heartbeat_interval_ms / 1000
        longest = settings.max_poll_interval_ms / 1000
        while True:
            is_watched = self.machine.beats and not self._is_asking
            left = self._polled_at + longest - loop.time() if is_watched else interval
            await asyncio.sleep(max(0.0, min(interval, left)))
            if not self.machine.beats:
                continue
            if loop.time() >= self._polled_at + longest and not self._is_asking:
                await self._overslept()
            else:
                await self._beat()

    async def _beat(self) -> None:
        machine = self.machine
        asked_as, before = machine.membership, machine.state
        session_s = self._settings.session_timeout_ms / 1000
        limit_s = min(session_s, self._cluster.settings.request_timeout_s)
        began = self.measured.beating()
        try:
            await beat(self._cluster, machine.metadata, limit_s)
            self.measured.beat(began)
        except ClientError as error:
            if action_for(error) is Action.REFRESH:
                self._cluster.forget_coordinator(machine.group_id)
            machine.refused(error, asked_as)
            if machine.state is not before:
                log_heartbeat_refused(machine, error)
                self._on_news()

    async def _overslept(self) -> None:
        limit = self._settings.max_poll_interval_ms
        why = f"the consumer has not polled for max.poll.interval.ms = {limit}"
        log_overslept(self.machine, why)
        await self._say_goodbye(why)
        self._on_news()

    # --- topics that come and grow --------------------------------------------------------------

    def _watch_from_now(self, wanted: Subscription, topics: frozenset[str]) -> None:
        self._topics = topics
        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().create_task(self._watching(wanted))

    async def _look_for(self, wanted: Subscription) -> None:
        """Logs, once for each subscription, the topics that do not exist: a name may be misspelt.
        Runs after joining, which must not wait for it."""
        reasons = []
        if wanted.pattern is None:
            create = self._settings.allow_auto_create_topics
            try:
                reasons = await missing_topics(self._cluster, wanted.topics, create=create)
            except ClientError as error:
                log_watch_failed(self.machine, error)
        elif not self._topics:
            reasons = [f"no topic matches {wanted.pattern.pattern!r}"]
        for reason in reasons:
            log_missing_topics(self.machine, reason)
        self._looked_for = wanted  # not when this was cut short by the next rebalance

    async def _watching(self, wanted: Subscription) -> None:
        """Until something has changed that the group goes by."""
        shared = self._shared
        is_missing = shared is not None and len(shared.counts) < len(shared.names)
        longest = self._settings.metadata_max_age_ms / 1000
        if wanted != self._looked_for:
            await self._look_for(wanted)
        while True:
            await asyncio.sleep(min(longest, _LOOK_AGAIN_S) if is_missing else longest)
            try:
                if await self._has_changed(shared):
                    break
            except ClientError as error:
                log_watch_failed(self.machine, error)
        self.machine.outdated()
        self._on_news()

    async def _has_changed(self, shared: _Shared | None) -> bool:
        if await meant_topics(self._cluster, self.subscription) != self._topics:
            return True
        if shared is None:
            return False
        return await partition_counts(self._cluster, shared.names) != shared.counts


def _assigned(group_id: str, data: bytes) -> frozenset[TopicPartition]:
    try:
        return frozenset(read_assignment(data))
    except MessageMalformed as error:
        raise AnswerMalformed(
            f"group {group_id!r}: the assignment of this member cannot be read: {error}"
        ) from error
