"""What a consumer does behind its methods: reading, the group, the positions and the commits, held
together. Everything that has to do with the group happens in the task that polls.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from onceflow.client.codec import OffsetToCommit
from onceflow.client.consumer.commits import Commits
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.consumer.lag import PartitionLag, lags
from onceflow.client.consumer.metrics import ConsumerMetrics
from onceflow.client.consumer.positions import Positions
from onceflow.client.consumer.rebalance import RebalanceListener, Rebalancer
from onceflow.client.consumer.record_iterator import RecordIterator
from onceflow.client.errors import ConsumerClosed, WrongUse
from onceflow.client.group import GroupLoop, MemberMachine, Subscription
from onceflow.client.net import Cluster
from onceflow.client.settings import ConsumerSettings
from onceflow.runtime import Rand
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    from onceflow.client.consumer.fetched import Record

T = TypeVar("T")
_GOODBYE_S: Final = 1.0
"""So long a LeaveGroup may take, also where the caller has no more time."""
_LAST_S: Final = 0.1
"""So long a cancelled listener is waited for: it may ignore the cancelling."""


class ConsumerWork:
    """One life of a consumer, from its start to its close.

    There are two classes because a `Consumer` can be started again after a close: it keeps its
    settings and its metrics, and gets a new `ConsumerWork`, so that nothing else of the old life
    (tasks, positions, a listener that returns late) can reach the new one.
    """

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, rand: Rand, measured: ConsumerMetrics
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.measured = measured
        self.fetcher = Fetcher(cluster, settings, rand=rand, measured=measured.fetching)
        self.rest = RecordIterator()
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
        self._leaving: asyncio.Task[None] | None = None
        """One for all callers that want it out of the group, until the last step of the leaving.
        Nothing new begins meanwhile."""
        self._telling: set[asyncio.Task[None]] = set()
        """All that have not ended of those in which listeners are called."""
        self._may_go = asyncio.Event()
        """All is given up, or there is no more time for that."""
        self._next_subscription: tuple[Subscription, RebalanceListener | None] | None = None
        """Made while it was leaving, and begun when it is out."""
        self._goodbye_s = _GOODBYE_S
        self._pid = os.getpid()
        self._is_started = False
        self._is_open = False
        self._is_polling = False
        self._has_put_off = False
        """Rows were handed out though there was an error to raise."""
        self._closed: asyncio.Event | None = None
        """There from the call of close on."""

    # --- start and end --------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or goes on in the parent of this process: what is started then is
        another one."""
        is_closed = self._closed is not None and self._closed.is_set()
        return is_closed or self._pid != os.getpid()

    @property
    def is_running(self) -> bool:
        """Whether it was started, and no close is under way."""
        return self._is_open and self._closed is None

    async def start(self) -> None:
        if self.is_running:
            return
        if self._is_started:
            raise WrongUse("start: another task is starting or closing the consumer")
        self._is_started = True
        try:
            await self.cluster.connect()
            self.cluster.check_open()  # else it was closed meanwhile
        except BaseException:
            self._is_started = False
            raise
        self._is_open = True

    async def close(self, *, commit: bool, timeout_s: float) -> None:
        """However it is called, and also if it is cut short: when this returns or raises, all that
        was under way has been cancelled."""
        self._check_not_listening("closed")
        if not self._is_open:
            self.cluster.close()  # a start may be under way
            return
        if self._closed is not None:
            await self._closed.wait()
            return
        self._closed = asyncio.Event()
        try:
            # There is time to leave the group even if brokers answer nothing else.
            goodbye_s = min(_GOODBYE_S, timeout_s / 2)
            async with asyncio.timeout(timeout_s - goodbye_s):
                await self.leave("the consumer was closed", commit=commit, goodbye_s=goodbye_s)
        except TimeoutError:
            pass  # no broker answers; the session ends by its timeout
        finally:
            self._is_open = False
            self._stop()
            self._closed.set()
            await self._ended()

    def _stop(self) -> None:
        """Without waiting for anything: what comes next may be cut short."""
        if self._leaving is not None:
            self._leaving.cancel()
        for task in self._telling:
            task.cancel()
        self.positions.stop()
        if self._commits is not None:
            self._commits.stop()
        self.fetcher.stop()
        self.cluster.close()

    async def _ended(self) -> None:
        await self.has_left()
        if self._telling:
            await asyncio.wait(self._telling, timeout=_LAST_S)
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

    def _check_not_closing(self) -> None:
        """Ends polling: the consumer gets no more rows. A listener that hears of the end may still
        commit."""
        if self._closed is not None:
            raise ConsumerClosed("the consumer was closed meanwhile")

    def _begin_telling(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """In a task of its own: a caller that stops waiting must not leave it half done."""
        task = asyncio.get_running_loop().create_task(work)
        self._telling.add(task)
        task.add_done_callback(self._told)
        return task

    def _told(self, task: asyncio.Task[None]) -> None:
        self._telling.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, even when no caller waits any more

    # --- what is read ---------------------------------------------------------------------------

    @property
    def subscription(self) -> Subscription | None:
        """The one that holds, or comes next."""
        if self._next_subscription is not None:
            return self._next_subscription[0]
        return None if self.rebalancer is None else self.rebalancer.loop.subscription

    def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        commits, rebalancer = self.commits, self.rebalancer
        if rebalancer is None and self.positions.assigned:
            raise WrongUse("partitions were assigned by hand; call unsubscribe first")
        if self._leaving is not None or (rebalancer is not None and rebalancer.must_leave):
            self._next_subscription = subscription, listener
            return
        rebalancer = rebalancer or self._join_group(commits)
        rebalancer.listener = listener or RebalanceListener()
        rebalancer.loop.wants(subscription)

    def _join_group(self, commits: Commits) -> Rebalancer:
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

    def check_may_assign(self) -> None:
        self.check_open()
        if self.subscription is not None:
            raise WrongUse("topics were subscribed to; call unsubscribe first")

    def assign(self, wanted: Collection[TopicPartition]) -> None:
        self.give_back()
        held = self.positions.assigned
        self.positions.end(held - set(wanted))
        self.positions.begin(set(wanted) - held)

    async def unsubscribe(self) -> None:
        self._next_subscription = None
        rebalancer = self.rebalancer
        if rebalancer is not None and rebalancer.is_listening:
            rebalancer.must_leave = True  # it waits for the listener that calls this
            return
        await self.leave("the consumer unsubscribed", commit=True)

    async def leave(self, why: str, *, commit: bool, goodbye_s: float = _GOODBYE_S) -> None:
        """Leaves the group, if it is in one; nothing is read any more. It is out also if this is
        cut short: then without the commit, or without a call of its listener. Callers that leave
        at the same time wait for the same task, and one that cuts it short does so for all."""
        self._goodbye_s = goodbye_s
        leaving = self._leaving or self._begin_leaving(why, commit)
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            if not _is_cancelled():
                return  # another caller has cut it short
            self._may_go.set()
            await asyncio.wait([leaving], timeout=goodbye_s)
            raise

    def _begin_leaving(self, why: str, commit: bool) -> asyncio.Task[None]:
        if self.rebalancer is not None:
            # Before anything is waited for: else a poll beside this gives up the same.
            self.rebalancer.is_leaving = True
        self.give_back()
        self.fetcher.interrupt()  # a poll waits until the consumer is out
        self._may_go = asyncio.Event()
        self._leaving = asyncio.get_running_loop().create_task(self._leave(why, commit))
        self._leaving.add_done_callback(self._has_left)
        return self._leaving

    async def _leave(self, why: str, commit: bool) -> None:
        rebalancer, attending = self.rebalancer, self._attending
        # In a task of its own, as a listener may take no notice of being cancelled.
        begun = asyncio.Event()

        async def give_up_all() -> None:
            begun.set()
            if attending is not None:
                await asyncio.wait([attending])
            if commit:
                await self.before_rebalance()
            if rebalancer is not None:
                await rebalancer.give_up_all()

        giving_up = self._begin_telling(give_up_all())
        giving_up.add_done_callback(lambda _: self._may_go.set())
        try:
            # A caller that is cut short at once has asked for the commit: with luck it is in time.
            await begun.wait()
            await self._may_go.wait()
            if giving_up.done():
                giving_up.result()
        finally:
            self._cut_off()
            theirs = [each for each in (giving_up, attending) if each is not None]
            for task in theirs:
                task.cancel()
            if rebalancer is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._goodbye_s):
                        await rebalancer.loop.leave(why)
                        await asyncio.wait(theirs)

    def _cut_off(self) -> None:
        """At once: all that is left is to say goodbye. A second time it does nothing."""
        rebalancer, self.rebalancer, self._attending = self.rebalancer, None, None
        self.give_back()  # what a poll beside this has brought since: others read it now
        self.positions.end(self.positions.assigned)
        if self._commits is not None:
            self._commits.machine = None
        if rebalancer is not None:
            rebalancer.stop()

    def _has_left(self, leaving: asyncio.Task[None]) -> None:
        if not leaving.cancelled():
            leaving.exception()  # looked at, even when no caller waits any more
        self._leaving = None
        self._cut_off()  # if it was cancelled before it had begun
        following, self._next_subscription = self._next_subscription, None
        if following is not None and self._closed is None:
            self.subscribe(*following)
        self.fetcher.interrupt()

    async def has_left(self) -> None:
        """Returns when a leaving that is under way is over."""
        if self._leaving is not None:
            await asyncio.wait([self._leaving])

    # --- records --------------------------------------------------------------------------------

    async def next(
        self, timeout_s: float, fetch: Callable[[float], Awaitable[T | None]]
    ) -> T | None:
        """What `fetch` brings within the time, with all that has to be done meanwhile."""
        self._check_not_listening("polled")
        if self._closed is not None:
            # A task that polls again after every error must not keep the close from its end.
            await self._closed.wait()
            await asyncio.sleep(0)
        self.check_open()
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
                is_troubled = self._look_for_trouble()
                found = await fetch(0.0 if is_troubled else max(0.0, deadline - clock()))
                if found:
                    self._has_put_off = is_troubled
                    if self.settings.commits_before:
                        await self._commit_first(found)
                    return found
                if is_troubled:
                    self.positions.check()
                if clock() >= deadline:
                    return None
        finally:
            self._is_polling = False
            self.measured.poll_ends()
            if self.rebalancer is not None:
                self.rebalancer.loop.polled()

    async def _attend(self, now: float) -> None:
        """The group, the positions and the commits."""
        if self._leaving is not None:
            await self.has_left()
        self._check_not_closing()
        rebalancer = self.rebalancer
        if rebalancer is not None:
            rebalancer.loop.polling()
            if self._attending is None and rebalancer.needs_attention:
                self._attending = self._begin_telling(rebalancer.attend())
            if self._attending is not None:
                await self._attended(self._attending)
            if rebalancer.must_leave and rebalancer is self.rebalancer:
                # The listener wanted it: the poll only waits, and does not cut it short.
                if self._leaving is None:
                    self._begin_leaving("the consumer unsubscribed", commit=True)
                await self.has_left()
                self._check_not_closing()
        if self._commits is not None:
            self._commits.tick(now)

    def _look_for_trouble(self) -> bool:
        """Whether it is not known where to begin in a partition. Rows of other partitions come
        first, or the error would starve them; but only once, or they would hide it. Then it is
        raised."""
        is_troubled = self.positions.has_problem
        if is_troubled and self._has_put_off:
            self._has_put_off = False
            self.positions.check()
        return is_troubled

    async def _attended(self, attending: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(attending)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            # The leaving has cut it short: the poll itself was not cancelled.
            await self.has_left()
            self._check_not_closing()
        finally:
            if attending.done() and self._attending is attending:
                self._attending = None

    async def _commit_first(self, found: Any) -> None:
        """For `delivery=at-most-once`: what cannot be committed is not handed out. Only what was
        found is committed: another partition that cannot be is no reason to keep it back."""
        from onceflow.client.consumer.fetched import firsts_of

        firsts = firsts_of(found)
        tokens = self.positions.tokens(firsts)
        behind = {each: self.fetcher.position(each) for each in firsts}
        offsets = {each: OffsetToCommit(at) for each, at in behind.items() if at is not None}
        try:
            # No member will read a topic again that was deleted meanwhile.
            await self.commits.commit(offsets, passes_over_gone=True)
        except BaseException:
            # To the rows themselves: where a partition was before may not have been known.
            self.positions.take_back(tokens, firsts)
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
        """What is left of records that the caller began to take one by one."""
        if not self.rest:
            return []
        self.check_open()
        if self.rebalancer is not None:
            self.rebalancer.loop.polled()
            self.keep_rest_if_ours()
        return self.rest.take(most)

    def keep_rest_if_ours(self) -> None:
        """Gives back what is left when the group comes first: another member may get it."""
        rebalancer = self.rebalancer
        if rebalancer is not None and (
            rebalancer.needs_attention or rebalancer.must_leave or self._attending is not None
        ):
            self.give_back()

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


def _is_cancelled() -> bool:
    """Whether the task that asks is; else what it waited for was."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
