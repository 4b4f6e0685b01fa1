"""What a consumer does behind its methods: reading, the group, the positions and the commits, held
together. Everything that has to do with the group happens in the task that polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from onceflow.client.cluster import Cluster
from onceflow.client.commits import Commits
from onceflow.client.consumer_errors import ConsumerClosed, WrongUse
from onceflow.client.consumer_metrics import ConsumerMetrics
from onceflow.client.consumer_settings import ConsumerSettings
from onceflow.client.fetcher import Fetcher
from onceflow.client.group_loop import GroupLoop
from onceflow.client.group_member import MemberMachine
from onceflow.client.lag import PartitionLag, lags
from onceflow.client.model import TopicPartition
from onceflow.client.positions import Positions
from onceflow.client.rebalance import RebalanceListener, Rebalancer
from onceflow.client.rest import Rest
from onceflow.client.topic_watch import Wish
from onceflow.client.txn_requests import OffsetToCommit
from onceflow.runtime.rand import Rand

if TYPE_CHECKING:
    from onceflow.client.fetched import Record

T = TypeVar("T")
_GOODBYE_S: Final = 1.0
"""For so long a group is told that a member leaves, also by one that has no more time."""


class ConsumerWork:
    """Of one consumer, from its start to its close; then it is used no more."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, rand: Rand, measured: ConsumerMetrics
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.measured = measured
        self.fetcher = Fetcher(cluster, settings, rand=rand, measured=measured.fetching)
        self.rest = Rest()
        measured.look_at(self.fetcher, self.rest)
        self._rand = rand
        self._commits: Commits | None = None
        if settings.group_id is not None:
            self._commits = Commits(
                cluster, settings, settings.group_id, self.consumed, measured.group, rand
            )
        self.positions = Positions(
            cluster,
            settings,
            self.fetcher,
            rand,
            None if self._commits is None else self._commits.ask_committed,
            self.fetcher.interrupt,
        )
        self.rebalancer: Rebalancer | None = None
        """There while topics are subscribed to."""
        self._attending: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_open = False
        self._is_polling = False
        self._closed: asyncio.Event | None = None
        """From when somebody closes it."""

    # --- start and end --------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it was closed: what is started then is another one."""
        return self._closed is not None and self._closed.is_set()

    async def start(self) -> None:
        if self._is_started:
            raise WrongUse("start: the consumer was started already, and not closed since")
        self._is_started = True
        try:
            await self.cluster.connect()
            self.cluster.check_open()  # else it was closed meanwhile
        except BaseException:
            self._is_started = False
            raise
        self._is_open = True

    async def close(self, *, commit: bool, timeout_s: float) -> None:
        """However it is called, and also if it is cut short, everything has been told to end when
        this returns or raises."""
        self._check_not_listening("closed")
        if not self._is_open:
            self.cluster.close()  # a start may be under way
            return
        if self._closed is not None:
            await self._closed.wait()
            return
        self._closed = asyncio.Event()
        try:
            # The group is still told when nobody answers anything else.
            goodbye_s = min(_GOODBYE_S, timeout_s / 2)
            async with asyncio.timeout(timeout_s - goodbye_s):
                await self.leave("the consumer was closed", commit=commit, goodbye_s=goodbye_s)
        except TimeoutError:
            pass  # nobody answers; the session ends by itself
        finally:
            self._is_open = False
            self._stop()
            self._closed.set()
            await self._ended()

    def _stop(self) -> None:
        """Without waiting for anything: what comes next may be cut short."""
        if self._attending is not None:
            self._attending.cancel()
        self.positions.stop()
        if self._commits is not None:
            self._commits.stop()
        self.fetcher.stop()
        self.cluster.close()

    async def _ended(self) -> None:
        if self._attending is not None:
            await asyncio.gather(self._attending, return_exceptions=True)
        await self.positions.close()
        if self._commits is not None:
            await self._commits.close()
        await self.fetcher.close()

    def _check_not_listening(self, what: str) -> None:
        if self.rebalancer is not None and self.rebalancer.is_listening:
            raise WrongUse(f"a consumer cannot be {what} by its listener, for which it waits")

    def check_open(self) -> None:
        if not self._is_open:
            raise ConsumerClosed("the consumer is not running")

    # --- what is read ---------------------------------------------------------------------------

    def subscribe(self, wish: Wish, listener: RebalanceListener | None) -> None:
        rebalancer = self.rebalancer
        if rebalancer is None:
            if self.positions.assigned:
                raise WrongUse("partitions were assigned by hand; call unsubscribe first")
            rebalancer = self._join_group()
        rebalancer.listener = listener or RebalanceListener()
        rebalancer.loop.wants(wish)

    def _join_group(self) -> Rebalancer:
        commits = self.commits
        machine = MemberMachine(commits.group_id, self.settings.group_instance_id)
        loop = GroupLoop(
            self.cluster,
            self.settings,
            machine,
            self._rand,
            self.fetcher.interrupt,
            self.measured.group,
        )
        self.rebalancer = Rebalancer(loop, self.settings, self)
        commits.machine = machine
        return self.rebalancer

    def assign(self, wanted: Collection[TopicPartition]) -> None:
        self.give_back()
        held = self.positions.assigned
        self.positions.end(held - set(wanted))
        self.positions.begin(set(wanted) - held)

    async def unsubscribe(self) -> None:
        rebalancer = self.rebalancer
        if rebalancer is not None and rebalancer.is_listening:
            rebalancer.must_leave = True  # it waits for the listener that calls this
            return
        await self.leave("the consumer unsubscribed", commit=True)

    async def leave(self, why: str, *, commit: bool, goodbye_s: float = _GOODBYE_S) -> None:
        """Out of the group, if it is in one; nothing is read any more. It is out also if this is
        cut short: then without the commit, or without its listener having been told."""
        self.give_back()
        rebalancer, attending = self.rebalancer, self._attending
        try:
            if attending is not None:
                await asyncio.gather(asyncio.shield(attending), return_exceptions=True)
            if commit:
                await self.before_rebalance()
            if rebalancer is not None:
                await rebalancer.give_up_all()
        finally:
            self.rebalancer = self._attending = None
            if attending is not None:
                attending.cancel()
            self.positions.end(self.positions.assigned)
            if self._commits is not None:
                self._commits.machine = None
            if rebalancer is not None:
                rebalancer.loop.stop()
                with suppress(TimeoutError):
                    async with asyncio.timeout(goodbye_s):
                        if attending is not None:
                            await asyncio.gather(attending, return_exceptions=True)
                        await rebalancer.loop.leave(why)

    # --- records --------------------------------------------------------------------------------

    async def next(
        self, timeout_s: float, fetch: Callable[[float], Awaitable[T | None]]
    ) -> T | None:
        """What `fetch` brings within the time, with all that has to be done meanwhile."""
        self.check_open()
        self._check_not_listening("polled")
        if self._is_polling:
            raise WrongUse("another task is polling this consumer")
        self._is_polling = True
        self.measured.poll_begins()
        self.measured.consumed(self.rest.count())
        try:
            clock = asyncio.get_running_loop().time
            deadline = clock() + timeout_s
            while True:
                await self._attend(clock())
                before = self.consumed() if self.settings.commits_before else None
                found = await fetch(max(0.0, deadline - clock()))
                if found:
                    if before is not None:
                        await self._commit_first(before)
                    return found
                if clock() >= deadline:
                    return None
                self.check_open()  # it may have been closed meanwhile
        finally:
            self._is_polling = False
            self.measured.poll_ends()
            if self.rebalancer is not None:
                self.rebalancer.loop.polled()

    async def _attend(self, now: float) -> None:
        """The group, the positions and the commits."""
        rebalancer = self.rebalancer
        if rebalancer is not None:
            rebalancer.loop.polling()
            if self._attending is None and rebalancer.needs_attention:
                # In a task of its own: who stops waiting must not leave it half done.
                self._attending = asyncio.get_running_loop().create_task(rebalancer.attend())
        attending = self._attending
        if attending is not None:
            try:
                await asyncio.shield(attending)
            finally:
                if attending.done():
                    self._attending = None
        if rebalancer is not None and rebalancer.must_leave:
            await self.leave("the consumer unsubscribed", commit=True)
        self.positions.check()
        if self._commits is not None:
            self._commits.tick(now)

    async def _commit_first(self, before: Mapping[TopicPartition, int]) -> None:
        """For `delivery=at-most-once`: what cannot be committed is not handed out."""
        try:
            await self.commit(self.consumed())
        except BaseException:
            self.positions.go_back(before)
            raise

    # --- positions and commits ------------------------------------------------------------------

    def consumed(self) -> dict[TopicPartition, int]:
        """Behind what was handed out."""
        delivered = self.positions.delivered()
        return {**delivered, **self.rest.positions()} if self.rest else delivered

    async def lag(
        self, partitions: Sequence[TopicPartition], *, exact: bool
    ) -> dict[TopicPartition, PartitionLag]:
        await self.positions.placed(partitions)
        untaken = self.rest.counts()
        return await lags(
            self.cluster, self.settings, self.fetcher, untaken, partitions, exact=exact
        )

    def take_rest(self, most: int) -> list[Record]:
        """What is left of records that somebody began to take one by one."""
        self.check_open()
        if self.rest and self.rebalancer is not None:
            self.rebalancer.loop.polled()
        return self.rest.take(most)

    def give_back(self) -> None:
        """What was fetched to be taken one by one is fetched again later."""
        if self.rest:
            left = self.rest.positions()
            self.measured.consumed(self.rest.count())
            self.rest.drop()
            self.positions.go_back(left)

    def take_back(self, firsts: Mapping[TopicPartition, int]) -> None:
        """What was handed out from these offsets on is handed out again."""
        self.give_back()
        self.positions.go_back(firsts)

    def chosen(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """These, which have to be assigned, or all that are."""
        wanted = [TopicPartition(*each) for each in partitions]
        self.positions.require(wanted)
        return wanted or sorted(self.positions.assigned)

    @property
    def commits(self) -> Commits:
        """Raises `WrongUse` without a group."""
        if self._commits is None:
            raise WrongUse("this needs a group: set group.id")
        return self._commits

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetToCommit]) -> None:
        await self.commits.commit(
            {
                TopicPartition(*each): at if isinstance(at, OffsetToCommit) else OffsetToCommit(at)
                for each, at in offsets.items()
            }
        )

    async def rewind(self, partitions: Sequence[TopicPartition]) -> None:
        await self.positions.rewind(partitions, self._committed)

    async def _committed(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetToCommit]:
        return {} if self._commits is None else await self._commits.committed(partitions)

    # --- for the rebalancer ---------------------------------------------------------------------

    async def before_rebalance(self) -> None:
        self.give_back()
        if self._commits is not None:
            await self._commits.now()

    def begin(self, partitions: Collection[TopicPartition]) -> None:
        self.positions.begin(partitions)

    def end(self, partitions: Collection[TopicPartition]) -> None:
        self.positions.end(partitions)
