"""A member's part in the rebalances of its group. It runs in the task that polls: partitions are
assigned and revoked only during a poll, never while the application works on records.

With an eager strategy a member gives up all partitions before it joins. With a cooperative one it
keeps reading, gives up only the partitions that the leader has assigned to others, and then joins
once more, so that the others get them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from onceflow.client.codec import NO_GENERATION
from onceflow.client.consumer.listener_guard import ListenerGuard
from onceflow.client.errors import ConsumerError
from onceflow.client.group import (
    GroupLoop,
    MemberAssignment,
    OwnedPartitions,
    Subscription,
    log_assigned,
    log_lost,
    log_revoked,
)
from onceflow.client.settings import ConsumerSettings
from onceflow.types import TopicPartition

Partitions = Collection[TopicPartition]
_listening: ListenerGuard[Rebalancer] = ListenerGuard("listening")
"""The rebalancer whose listener is being called."""


class RebalanceListener:
    """Called while the consumer polls, when partitions are assigned or revoked. It may commit, seek
    and unsubscribe, which takes effect when it has returned. It cannot poll or close the consumer.
    `poll` raises what it raises.

    >>> from onceflow import Consumer
    >>> class Printing(RebalanceListener):
    ...     async def on_partitions_assigned(self, partitions):
    ...         print("assigned", *partitions)
    ...     async def on_partitions_revoked(self, partitions):
    ...         print("revoked", *partitions)
    >>> async def main() -> None:
    ...     async with Consumer(bootstrap, group_id="shop") as consumer:
    ...         consumer.subscribe(["orders"], Printing())
    ...         while not consumer.assignment:
    ...             await consumer.poll(0.1)
    >>> asyncio.run(main())
    assigned orders-0
    revoked orders-0
    """

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Called after each rebalance with the partitions that were added, perhaps none."""

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Called before these partitions are given up: until this returns they are still this
        member's, and their offsets can be committed."""

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        """Called when these partitions may belong to other members already: their offsets can no
        longer be committed."""
        await self.on_partitions_revoked(partitions)


class Hands(Protocol):
    """The consumer, as its rebalancer sees it."""

    async def before_rebalance(self) -> None:
        """Commits offsets, if the consumer commits automatically."""
        ...

    def begin(self, partitions: Partitions) -> None:
        """Starts reading these partitions."""
        ...

    def end(self, partitions: Partitions) -> None:
        """Stops reading these partitions."""
        ...


class _NoHands:
    """Stands in for a consumer that has left its group."""

    async def before_rebalance(self) -> None:
        pass

    def begin(self, partitions: Partitions) -> None:
        pass

    def end(self, partitions: Partitions) -> None:
        pass


class Rebalancer:
    """Holds the partitions that the member owns, and changes them in rebalances."""

    def __init__(self, loop: GroupLoop, settings: ConsumerSettings, hands: Hands) -> None:
        self.listener = RebalanceListener()
        self.loop = loop
        self._machine = loop.machine
        self._measured = loop.measured
        self._is_cooperative = settings.is_cooperative
        self._hands: Hands = hands
        self._held: frozenset[TopicPartition] = frozenset()
        self._held_since = NO_GENERATION
        self._is_prepared = False
        self._refused_subscription: Subscription | None = None
        """The subscription with which the member has already refused partitions and joined again;
        it does that once, or a leader that assigns them again would cause endless rebalances."""
        self.must_leave = False
        """A listener has unsubscribed, which takes effect when it has returned."""
        self.is_leaving = False
        """The consumer is leaving the group: that gives up the partitions, so that a poll beside it
        must not, nor start to join."""
        self._problem: BaseException | None = None

    def stop(self) -> None:
        """The consumer has left the group."""
        # A listener that ignores its cancellation may return much later, when the consumer is in
        # the group again with another rebalancer. This one must not touch its partitions then.
        self.loop.stop()
        self._hands = _NoHands()
        self.listener = RebalanceListener()

    @property
    def held(self) -> frozenset[TopicPartition]:
        return self._held

    @property
    def needs_attention(self) -> bool:
        """Whether `attend` has something to do."""
        machine, loop = self._machine, self.loop
        if self.must_leave or self.is_leaving or loop.is_over:
            return False
        return (
            machine.has_lost
            or loop.crash is not None
            or (
                loop.has_result
                if loop.is_joining
                else machine.must_join or machine.failure is not None
            )
        )

    async def attend(self) -> None:
        """Takes the next steps of a rebalance; starts to join in the background. Raises what a
        listener raised, and the error for which the member cannot join."""
        while self.needs_attention:
            if self.loop.crash is not None:
                crash, self.loop.crash = self.loop.crash, None
                raise crash
            if self._machine.has_lost:
                await self._lost()
            if self._machine.failure is not None:
                raise self._machine.failure
            if self.loop.is_joining:
                assignment = self.loop.take()
                if assignment is not None:
                    await self._take(assignment)
            elif self._machine.must_join:
                await self._prepare()
                if not (self._machine.has_lost or self.must_leave or self.is_leaving):
                    self.loop.start_join(OwnedPartitions(self._held, self._held_since))
            self._raise_problem()

    async def _prepare(self) -> None:
        """Gives up partitions, once before each rebalance, however often joining is retried."""
        if self._is_prepared:
            return
        # Offsets are committed before the partitions are given up: afterwards another member reads
        # them from the committed offset, and the coordinator refuses this member's commit.
        await self._hands.before_rebalance()
        revoked = self._held
        if self._is_cooperative:
            subscription = self.loop.subscription
            revoked = frozenset(each for each in self._held if not subscription.means(each.topic))
        await self._give_up(revoked)
        self._is_prepared = True

    async def _take(self, assignment: MemberAssignment) -> None:
        self._is_prepared = False
        assignment = self._wanted(assignment)
        if self._is_cooperative:
            revoked = self._held - assignment.partitions
            if revoked:
                await self._hands.before_rebalance()
                await self._give_up(revoked)
                # Only now, with the partitions given up: joining again hands them to others.
                self._machine.outdated()
        added = assignment.partitions - self._held
        self._held = assignment.partitions
        self._held_since = assignment.generation
        self._hands.begin(added)
        log_assigned(self._machine, added, self._held)
        began = self._measured.now()
        await self._tell(self.listener.on_partitions_assigned, added)
        self._measured.assigned(began)

    def _wanted(self, assignment: MemberAssignment) -> MemberAssignment:
        """The part of an assignment that the member subscribes to now. The member joins again when
        its subscription has changed since it joined; and once when it gets other topics all the
        same, as a static member does that comes back with another subscription."""
        subscription = self.loop.subscription
        wanted = frozenset(each for each in assignment.partitions if subscription.means(each.topic))
        is_unwanted = wanted != assignment.partitions and self._refused_subscription != subscription
        if subscription != assignment.subscription or is_unwanted:
            self._refused_subscription = subscription
            self._machine.outdated()
        return assignment._replace(partitions=wanted)

    async def _lost(self) -> None:
        self._machine.has_lost = False
        self._is_prepared = False
        lost = self._held
        self._held, self._held_since = frozenset(), NO_GENERATION
        self._hands.end(lost)
        if lost:
            log_lost(self._machine, lost)
            began = self._measured.now()
            await self._tell(self.listener.on_partitions_lost, lost)
            self._measured.lost(began)

    async def give_up_all(self) -> None:
        """Gives up all partitions before leaving; raises what the listener raised."""
        if self._machine.has_lost:
            await self._lost()
        await self._give_up(self._held)
        self._raise_problem()

    async def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Calls the listener, then stops reading the partitions."""
        if not partitions:
            return
        began = self._measured.now()
        # The listener first: it may commit these partitions, whose positions `end` drops.
        await self._tell(self.listener.on_partitions_revoked, partitions)
        self._measured.revoked(began)
        self._hands.end(partitions)
        log_revoked(self._machine, partitions)
        self._held -= partitions

    async def _tell(
        self, call: Callable[[Partitions], Awaitable[None]], partitions: frozenset[TopicPartition]
    ) -> None:
        """Calls the listener. Its error is kept and raised later: raised here, it would leave the
        rebalance half done, with partitions that are held and not read, or read and not held."""
        try:
            with _listening.by(self):
                await call(sorted(partitions))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The listener cancelled something of its own; the task that polls was not cancelled.
            self._problem = self._problem or ConsumerError("a listener was cancelled")
            self._problem.__cause__ = error
        except Exception as error:
            self._problem = self._problem or error

    @property
    def is_listening(self) -> bool:
        """Whether the caller is this rebalancer's listener, for which it waits."""
        return _listening.is_by(self)

    def _raise_problem(self) -> None:
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
