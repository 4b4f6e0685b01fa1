"""A member takes part in the rebalances of its group, in the task of whoever polls: partitions come
and go only there, never while records are being worked on.

Eager strategies give up everything before they join. With cooperative ones a member keeps reading,
and gives up only what it has lost; then it joins once more, so that others can have that.
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
"""Whose listener is being told something."""


class RebalanceListener:
    """Hears of partitions that come and go, while the consumer polls; it may commit and seek, and
    unsubscribe, which is done when it has returned. It cannot poll or close the consumer. What it
    raises is raised by `poll`.

    >>> from onceflow import Consumer
    >>> class Told(RebalanceListener):
    ...     async def on_partitions_assigned(self, partitions):
    ...         print("given", *partitions)
    ...     async def on_partitions_revoked(self, partitions):
    ...         print("gives up", *partitions)
    >>> async def main() -> None:
    ...     async with Consumer(bootstrap, group_id="shop") as consumer:
    ...         consumer.subscribe(["orders"], Told())
    ...         while not consumer.assignment:
    ...             await consumer.poll(0.1)
    >>> asyncio.run(main())
    given orders-0
    gives up orders-0
    """

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        """After each rebalance: these were added, which may be none."""

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """These are still this member's, and are given up when this returns: commit them now."""

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        """These belong to others already: nothing can be committed any more."""
        await self.on_partitions_revoked(partitions)


class Hands(Protocol):
    """Whose partitions come and go."""

    async def before_rebalance(self) -> None:
        """Commits what is to be committed."""
        ...

    def begin(self, partitions: Partitions) -> None:
        """Starts reading these."""
        ...

    def end(self, partitions: Partitions) -> None:
        """Stops reading these."""
        ...


class _NoHands:
    """Of a consumer that has left."""

    async def before_rebalance(self) -> None:
        pass

    def begin(self, partitions: Partitions) -> None:
        pass

    def end(self, partitions: Partitions) -> None:
        pass


class Rebalancer:
    """Knows what the member holds."""

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
        """For which it was given what it does not want, and has said so."""
        self.must_leave = False
        """A listener has unsubscribed, which is done when it has returned."""
        self.is_leaving = False
        """Whoever leaves gives up what is held, and nobody else does: nothing new is begun."""
        self._problem: BaseException | None = None

    def stop(self) -> None:
        """The consumer is out. A listener may take no notice, and return when the consumer is in
        the group again: nothing of this may touch that any more."""
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
        """Does what is to be done now, and starts what takes its time. Raises what a listener
        raised, and why a member cannot join."""
        while self.needs_attention:
            if self.loop.crash is not None:
                crash, self.loop.crash = self.loop.crash, None
                raise crash
            if self._machine.has_lost:
                await self._lost()
            if self._machine.failure is not None:
                raise self._machine.failure
            if self.loop.is_joining:
                given = self.loop.take()
                if given is not None:
                    await self._take(given)
            elif self._machine.must_join:
                await self._prepare()
                if not (self._machine.has_lost or self.must_leave or self.is_leaving):
                    self.loop.start_join(OwnedPartitions(self._held, self._held_since))
            self._raise_problem()

    async def _prepare(self) -> None:
        """Once before each rebalance, however often joining has to be tried."""
        if self._is_prepared:
            return
        await self._hands.before_rebalance()
        given_up = self._held
        if self._is_cooperative:
            subscription = self.loop.subscription
            given_up = frozenset(each for each in self._held if not subscription.means(each.topic))
        await self._give_up(given_up)
        self._is_prepared = True

    async def _take(self, given: MemberAssignment) -> None:
        self._is_prepared = False
        given = self._wanted(given)
        if self._is_cooperative:
            surplus = self._held - given.partitions
            if surplus:
                await self._hands.before_rebalance()
                await self._give_up(surplus)
                self._machine.outdated()
        added = given.partitions - self._held
        self._held = given.partitions
        self._held_since = given.generation
        self._hands.begin(added)
        log_assigned(self._machine, added, self._held)
        began = self._measured.now()
        await self._tell(self.listener.on_partitions_assigned, added)
        self._measured.assigned(began)

    def _wanted(self, given: MemberAssignment) -> MemberAssignment:
        """What of it is subscribed to now. The group hears of it when that has changed since the
        member asked; and once when it is given something else all the same, as a static member that
        comes back with another subscription is."""
        subscription = self.loop.subscription
        wanted = frozenset(each for each in given.partitions if subscription.means(each.topic))
        is_unwanted = wanted != given.partitions and self._refused_subscription != subscription
        if subscription != given.subscription or is_unwanted:
            self._refused_subscription = subscription
            self._machine.outdated()
        return given._replace(partitions=wanted)

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
        """Before leaving; raises what the listener raised."""
        if self._machine.has_lost:
            await self._lost()
        await self._give_up(self._held)
        self._raise_problem()

    async def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """They are this member's until the listener has returned."""
        if not partitions:
            return
        began = self._measured.now()
        await self._tell(self.listener.on_partitions_revoked, partitions)
        self._measured.revoked(began)
        self._hands.end(partitions)
        log_revoked(self._machine, partitions)
        self._held -= partitions

    async def _tell(
        self, hear: Callable[[Partitions], Awaitable[None]], partitions: frozenset[TopicPartition]
    ) -> None:
        """What a listener raises must not keep the others from being told: it is raised later."""
        try:
            with _listening.by(self):
                await hear(sorted(partitions))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The listener was, by its own doing: nobody has cancelled who polls.
            self._problem = self._problem or ConsumerError("a listener was cancelled")
            self._problem.__cause__ = error
        except Exception as error:
            self._problem = self._problem or error

    @property
    def is_listening(self) -> bool:
        """Whether this is called by one of its listeners, which it waits for."""
        return _listening.is_by(self)

    def _raise_problem(self) -> None:
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
