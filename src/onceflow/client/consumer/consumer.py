"""The consumer: reads partitions that it was told, or shares topics with the others of its group.

`poll` gives a list of records, `poll_table` an Arrow table. Only what was committed is delivered,
unless `isolation.level` says otherwise. All that has to do with the group happens while polling, in
the task that polls: between two polls nothing is taken away, and nothing is committed that was not
handed out before the last one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from onceflow.client.codec import GroupMember, OffsetToCommit
from onceflow.client.consumer.consumer_work import ConsumerWork
from onceflow.client.consumer.lag import PartitionLag
from onceflow.client.consumer.metrics import ConsumerMetrics
from onceflow.client.consumer.positions import Positions
from onceflow.client.consumer.rebalance import RebalanceListener as RebalanceListener
from onceflow.client.errors import NoPosition, WrongUse
from onceflow.client.events import Names
from onceflow.client.group import Subscription
from onceflow.client.net import Cluster, comma_separated
from onceflow.client.settings import ConsumerSettings
from onceflow.client.types import EARLIEST, LATEST
from onceflow.runtime import Clock, Net, Rand, RealClock, RealRand
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from onceflow.client.consumer.fetched import Record

Partitions = Iterable[TopicPartition]
_A_WHILE_S: Final = 1.0
_CLOSE_S: Final = 30.0


class Consumer:
    """Settings go by Kafka's names, in a mapping with dots or as keywords with underscores. Made
    for one event loop, and for one task that polls.

    >>> from onceflow import Producer
    >>> async def main() -> None:
    ...     async with Producer(bootstrap) as producer:
    ...         await producer.send("orders", b"paid")
    ...     settings = {"group.id": "shop", "auto.offset.reset": "earliest"}
    ...     async with Consumer(bootstrap, settings) as consumer:
    ...         consumer.subscribe(["orders"])
    ...         async for record in consumer:
    ...             print(record.topic, record.offset, record.value)
    ...             break
    >>> asyncio.run(main())
    orders 0 b'paid'
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        net: Net | None = None,
        clock: Clock | None = None,
        rand: Rand | None = None,
        **named: object,
    ) -> None:
        if bootstrap is not None:
            named["bootstrap_servers"] = bootstrap
        self.settings = ConsumerSettings.of(settings, **named)
        self._net = net
        self._rand = rand or RealRand()
        self._measured = ConsumerMetrics(
            (clock or RealClock()).monotonic,
            has_group=self.settings.group_id is not None,
            read_committed=self.settings.read_committed,
        )
        self._work = self._new_work()

    def _new_work(self) -> ConsumerWork:
        """All that belongs to one life of a consumer, from its start to its close: nothing of it
        is left for the next one but what was counted."""
        settings = self.settings
        cluster = Cluster(
            settings.bootstrap_servers, settings.cluster(), net=self._net, rand=self._rand
        )
        return ConsumerWork(cluster, settings, self._rand, self._measured)

    @property
    def _positions(self) -> Positions:
        return self._work.positions

    def __repr__(self) -> str:
        settings, work = self.settings, self._work
        group = "no group" if settings.group_id is None else f"group {settings.group_id!r}"
        if work.is_running:
            state = f"reads {Names.of(sorted(self.assignment))}"
        else:
            state = "closed" if work.is_over else "not started"
        return f"<Consumer of {comma_separated(settings.bootstrap_servers)}, {group}, {state}>"

    # --- start and end --------------------------------------------------------------------------

    async def start(self) -> None:
        """Reaches the cluster; raises `BrokerUnreachable` and the like. After a close it begins
        anew: with nothing assigned or subscribed to; while somebody else starts or closes it this
        raises `WrongUse`, and if it runs nothing happens."""
        if self._work.is_over:
            self._work = self._new_work()
        await self._work.start()

    async def close(self, *, commit: bool = True, timeout_s: float = _CLOSE_S) -> None:
        """Commits what is to be committed by itself, unless told otherwise, tells the listener, and
        leaves the group; static members stay in it until their session ends."""
        await self._work.close(commit=commit, timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Whoever failed may not have done what they were given: it is to be read again.
        await self.close(commit=error is None)

    # --- what is read ---------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        listener: RebalanceListener | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
    ) -> None:
        """Shares these topics, or all whose whole name matches the pattern, with the others of the
        group, from the next poll on. Topics that come later, and new partitions, are taken up."""
        self._work.check_open()
        if isinstance(topics, str):
            raise WrongUse(f"give a list of topics: [{topics!r}]")
        names = frozenset(topics)
        if bool(names) == (pattern is not None):
            raise WrongUse("subscribe to topics, or to a pattern")
        found = None if pattern is None else re.compile(pattern)
        subscription = Subscription(
            names, found, takes_internal=not self.settings.exclude_internal_topics
        )
        self._work.subscribe(subscription, listener)

    async def assign(self, partitions: Iterable[TopicPartition | str]) -> None:
        """Reads these partitions, or all partitions of these topics, and no others; the group, if
        there is one, only keeps the offsets. Raises `TopicNotFound`."""
        work = self._work
        work.check_may_assign()
        if isinstance(partitions, str):
            raise WrongUse(f"give a list of topics: [{partitions!r}]")
        wanted: list[TopicPartition] = []
        for each in partitions:
            if isinstance(each, str):
                found = await work.cluster.find_topic(each)
                wanted += [TopicPartition(each, one.partition) for one in found.partitions]
            else:
                wanted.append(TopicPartition(*each))
        await work.has_left()
        work.check_may_assign()  # again: it may have subscribed, or be closed, by now
        work.assign(wanted)

    async def unsubscribe(self) -> None:
        """Leaves the group, if it is in one, and reads nothing any more. Called by a listener, it
        is done when that has returned."""
        self._work.check_open()
        await self._work.unsubscribe()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What is read now."""
        return frozenset(self._positions.assigned)

    @property
    def subscription(self) -> Subscription | None:
        """What was subscribed to."""
        return self._work.subscription

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Delivers nothing of these until `resume`; the member stays in its group."""
        self._work.check_open()
        self._positions.require(partitions)
        self._work.give_back()
        self._positions.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Goes on with what was paused."""
        self._work.check_open()
        self._positions.resume(partitions)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What `pause` holds back."""
        return frozenset(self._positions.paused)

    # --- records --------------------------------------------------------------------------------

    async def poll(self, timeout_s: float, *, max_records: int | None = None) -> list[Record]:
        """The next records, `max.poll.records` at most; empty when none came in time.

        Raises what keeps a partition from being read, why the group cannot be joined, and what a
        listener raised; called again, it goes on.
        """
        most = max_records or self.settings.max_poll_records
        if left := self._work.take_rest(most):
            return left
        found = await _poll(self._work, timeout_s, most)
        self._measured.consumed(len(found))
        return found

    async def poll_by_partition(
        self, timeout_s: float, *, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """As `poll`, by partition."""
        found: dict[TopicPartition, list[Record]] = {}
        records = await self.poll(timeout_s, max_records=max_records)
        for place, each in groupby(records, key=lambda one: (one.topic, one.partition)):
            found.setdefault(TopicPartition(*place), []).extend(each)
        return found

    async def poll_table(self, timeout_s: float, *, max_rows: int | None = None) -> pa.Table | None:
        """As `poll`, as columns of `fetched.FETCHED_SCHEMA`, and without `max.poll.records`; None
        when nothing came in time."""
        self._work.give_back()
        fetcher = self._work.fetcher
        found = await self._work.next(
            timeout_s, lambda left_s: fetcher.next_table(left_s, max_rows=max_rows)
        )
        self._measured.consumed(0 if found is None else found.num_rows)
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record, however long it takes. Who asks for one is done with the one before."""
        work = self._work
        rest, rebalancer = work.rest, work.rebalancer
        if rebalancer is not None:
            rebalancer.loop.polled()
            work.keep_rest_if_ours()
        record = rest.one()
        while record is None:
            rest.put(await _poll(work, _A_WHILE_S, self.settings.max_poll_records))
            record = rest.one()
        return record

    def _take_back(
        self, found: Record | list[Record] | dict[TopicPartition, list[Record]] | pa.Table | None
    ) -> None:
        """What a poll has handed out did not reach whoever polled (`onceflow.blocking`), and comes
        again."""
        if found:
            from onceflow.client.consumer.fetched import firsts_of

            self._work.take_back(firsts_of(found))

    # --- positions ------------------------------------------------------------------------------

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Goes on at another offset."""
        self._work.check_open()
        self._positions.require([partition])
        self._work.give_back()
        self._positions.seek(partition, offset)

    async def seek_to_beginning(self, partitions: Partitions = ()) -> None:
        """To the first offset of these, or of all."""
        await self._seek_by_time(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Partitions = ()) -> None:
        """Behind the last offset of these, or of all; the last stable one for `read_committed`."""
        await self._seek_by_time(partitions, LATEST)

    async def seek_to_timestamp(self, timestamp_ms: int, partitions: Partitions = ()) -> None:
        """To the first records that are not older, in milliseconds since 1970; to the end where
        there are none. A time before 1970 is the beginning of all."""
        await self._seek_by_time(partitions, max(0, timestamp_ms))

    async def _seek_by_time(self, partitions: Partitions, time: int) -> None:
        self._work.check_open()
        wanted = self._work.chosen(partitions)
        self._work.give_back()
        await self._positions.seek_to_time(wanted, time)

    async def rewind(self, partitions: Partitions = ()) -> None:
        """Back to what the group has committed of these, or of all, and where that is nothing to
        where reading began: for work that was aborted, and has to be done again."""
        self._work.check_open()
        wanted = self._work.chosen(partitions)
        self._work.give_back()
        await self._work.rewind(wanted)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that is handed out, or of what is passed over before it."""
        self._work.check_open()
        self._positions.require([partition])
        await self._positions.placed([partition])
        found = self._work.consumed().get(partition)
        if found is None:
            raise NoPosition(f"there is no position to read {partition} from")
        return found

    async def lag(
        self, partitions: Partitions = (), *, exact: bool = False
    ) -> dict[TopicPartition, PartitionLag]:
        """How far this consumer is behind in these, or in all, as the brokers say now. `exact`
        reads through what was not fetched yet, and counts."""
        self._work.check_open()
        return await self._work.lag(self._work.chosen(partitions), exact=exact)

    def metrics(self) -> Mapping[str, float]:
        """What was counted so far, by the names that Kafka's consumers use."""
        return self._measured.snapshot()

    @property
    def measured(self) -> ConsumerMetrics:
        """What was counted, one by one; `metrics` is all at once."""
        return self._measured

    # --- commits --------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetToCommit] | None = None
    ) -> None:
        """Commits these offsets, each the next one to read, or behind all that was handed out.

        Raises `CommitFailed` when the member is out of its group, `RebalanceInProgress` when it has
        to poll first.
        """
        self._work.check_open()
        await self._work.commit(self._work.consumed() if offsets is None else offsets)

    async def committed(self, partitions: Partitions = ()) -> dict[TopicPartition, OffsetToCommit]:
        """What the group has committed of these, or of all that are assigned; those without are
        left out."""
        self._work.check_open()
        wanted = [TopicPartition(*each) for each in partitions] or self._work.chosen(())
        return await self._work.commits.committed(wanted)

    def group_metadata(self) -> GroupMember:
        """Who commits, for `send_offsets` of a transaction: with it the broker refuses a member
        that is out of date. Raises `CommitFailed` when this one is."""
        self._work.check_open()
        return self._work.commits.member


async def _poll(work: ConsumerWork, timeout_s: float, most: int) -> list[Record]:
    found = await work.next(
        timeout_s, lambda left_s: work.fetcher.next_records(left_s, max_records=most)
    )
    return found or []
