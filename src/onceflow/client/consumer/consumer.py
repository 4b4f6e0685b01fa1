"""The consumer: reads partitions that the application assigns, or shares topics with the other
members of its group.

`poll` returns a list of records, `poll_table` an Arrow table. The consumer returns committed
records only, unless `isolation.level` says otherwise. Rebalances and automatic commits happen
during a poll, in the task that polls: between two polls no partition is revoked, and an automatic
commit covers only records that were returned before the current poll.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from onceflow.client.address import (
    comma_separated,
)
from onceflow.client.codec import GroupMember, OffsetToCommit
from onceflow.client.consumer.consumer_work import ConsumerWork
from onceflow.client.consumer.lag import PartitionLag
from onceflow.client.consumer.metrics import ConsumerMetrics
from onceflow.client.consumer.positions import Positions
from onceflow.client.consumer.rebalance import RebalanceListener as RebalanceListener
from onceflow.client.errors import NoPosition, WrongUse
from onceflow.client.events import Names
from onceflow.client.group import Subscription
from onceflow.client.net import (
    Cluster,
)
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
    """Reads records, alone or as a member of a group.

    Settings have Kafka's names: with dots in a mapping, with underscores as keywords. A consumer
    belongs to one event loop, and one task polls it.

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
        """The state of one life of a consumer, from its start to its close. Only the metrics stay
        for the next life."""
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
        """Connects to the cluster; raises `BrokerUnreachable` and the like.

        A consumer that was closed starts afresh, with nothing assigned and no subscription. Raises
        `WrongUse` while another task starts or closes the consumer; does nothing when it is
        running."""
        if self._work.is_over:
            self._work = self._new_work()
        await self._work.start()

    async def close(self, *, commit: bool = True, timeout_s: float = _CLOSE_S) -> None:
        """Commits offsets if the consumer commits automatically and `commit` is true, calls the
        listener, and leaves the group. A static member stays in it until its session times out."""
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
        # After an error the application may not have processed the last records: without a commit
        # they are read again.
        await self.close(commit=error is None)

    # --- what is read ---------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        listener: RebalanceListener | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
    ) -> None:
        """Shares these topics, or all whose whole name matches the pattern, with the other members
        of the group, from the next poll on. New topics and new partitions are included."""
        self._work.check_open()
        if isinstance(topics, str):
            raise WrongUse(f"give a list of topics: [{topics!r}]")
        names = frozenset(topics)
        if bool(names) == (pattern is not None):
            raise WrongUse("subscribe to topics, or to a pattern")
        compiled = None if pattern is None else re.compile(pattern)
        subscription = Subscription(
            names, compiled, takes_internal=not self.settings.exclude_internal_topics
        )
        self._work.subscribe(subscription, listener)

    async def assign(self, partitions: Iterable[TopicPartition | str]) -> None:
        """Reads these partitions, or all partitions of these topics, and no others. The group, if
        there is one, only stores offsets. Raises `TopicNotFound`."""
        work = self._work
        work.check_may_assign()
        if isinstance(partitions, str):
            raise WrongUse(f"give a list of topics: [{partitions!r}]")
        wanted: list[TopicPartition] = []
        for each in partitions:
            if isinstance(each, str):
                topic = await work.cluster.find_topic(each)
                wanted += [TopicPartition(each, one.partition) for one in topic.partitions]
            else:
                wanted.append(TopicPartition(*each))
        await work.has_left()
        work.check_may_assign()  # again: `subscribe` or `close` may have run during the waits
        work.assign(wanted)

    async def unsubscribe(self) -> None:
        """Leaves the group, if there is one, and stops reading. Called by a listener, this takes
        effect when the listener has returned."""
        self._work.check_open()
        await self._work.unsubscribe()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned now."""
        return frozenset(self._positions.assigned)

    @property
    def subscription(self) -> Subscription | None:
        """The current subscription, if there is one."""
        return self._work.subscription

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Returns no records of these partitions until `resume`. The member stays in its group."""
        self._work.check_open()
        self._positions.require(partitions)
        self._work.give_back()
        self._positions.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Returns records of these partitions again."""
        self._work.check_open()
        self._positions.resume(partitions)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(self._positions.paused)

    # --- records --------------------------------------------------------------------------------

    async def poll(self, timeout_s: float, *, max_records: int | None = None) -> list[Record]:
        """The next records, `max.poll.records` at most; empty when none came in time.

        Raises the error for which a partition cannot be read or the group cannot be joined, and
        what a listener raised. Polling can go on after that.
        """
        most = max_records or self.settings.max_poll_records
        if left := self._work.take_rest(most):
            return left
        records = await _poll(self._work, timeout_s, most)
        self._measured.consumed(len(records))
        return records

    async def poll_by_partition(
        self, timeout_s: float, *, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Like `poll`, with the records grouped by partition."""
        by_partition: dict[TopicPartition, list[Record]] = {}
        records = await self.poll(timeout_s, max_records=max_records)
        for partition, run in groupby(records, key=lambda one: (one.topic, one.partition)):
            by_partition.setdefault(TopicPartition(*partition), []).extend(run)
        return by_partition

    async def poll_table(self, timeout_s: float, *, max_rows: int | None = None) -> pa.Table | None:
        """Like `poll`, as an Arrow table with the columns of `fetched.FETCHED_SCHEMA`.
        `max.poll.records` does not apply. None when no record came in time."""
        self._work.give_back()
        fetcher = self._work.fetcher
        table = await self._work.next(
            timeout_s, lambda left_s: fetcher.next_table(left_s, max_rows=max_rows)
        )
        self._measured.consumed(0 if table is None else table.num_rows)
        return table

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record, however long it takes. Asking for it means that the application is done
        with the one before, which a commit may then cover."""
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
        """Returns records once more that a poll returned and that did not reach the caller
        (`onceflow.blocking`)."""
        if found:
            from onceflow.client.consumer.fetched import firsts_of

            self._work.take_back(firsts_of(found))

    # --- positions ------------------------------------------------------------------------------

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continues reading at this offset."""
        self._work.check_open()
        self._positions.require([partition])
        self._work.give_back()
        self._positions.seek(partition, offset)

    async def seek_to_beginning(self, partitions: Partitions = ()) -> None:
        """Seeks to the first offset of these partitions, or of all."""
        await self._seek_by_time(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Partitions = ()) -> None:
        """Seeks to the end of these partitions, or of all: to the last stable offset when reading
        committed records, else to the high watermark."""
        await self._seek_by_time(partitions, LATEST)

    async def seek_to_timestamp(self, timestamp_ms: int, partitions: Partitions = ()) -> None:
        """Seeks to the first record at or after this time, in milliseconds since 1970, or to the
        end if there is none. A time before 1970 means the beginning."""
        await self._seek_by_time(partitions, max(0, timestamp_ms))

    async def _seek_by_time(self, partitions: Partitions, time: int) -> None:
        self._work.check_open()
        wanted = self._work.chosen(partitions)
        self._work.give_back()
        await self._positions.seek_to_time(wanted, time)

    async def rewind(self, partitions: Partitions = ()) -> None:
        """Goes back to the group's committed offsets of these partitions, or of all; without one,
        to where reading began. For records that have to be processed again after an abort."""
        self._work.check_open()
        wanted = self._work.chosen(partitions)
        self._work.give_back()
        await self._work.rewind(wanted)

    async def position(self, partition: TopicPartition) -> int:
        """The offset from which the next record is read. That record may be a later one, behind
        aborted records, markers or a gap."""
        self._work.check_open()
        self._positions.require([partition])
        await self._positions.placed([partition])
        offset = self._work.consumed().get(partition)
        if offset is None:
            raise NoPosition(f"there is no position to read {partition} from")
        return offset

    async def lag(
        self, partitions: Partitions = (), *, exact: bool = False
    ) -> dict[TopicPartition, PartitionLag]:
        """How far this consumer is behind in these partitions, or in all, by the offsets that the
        leaders report now. `exact` reads the records that are not fetched yet, and counts them."""
        self._work.check_open()
        return await self._work.lag(self._work.chosen(partitions), exact=exact)

    def metrics(self) -> Mapping[str, float]:
        """The metrics so far, under the names that Kafka's consumer uses."""
        return self._measured.snapshot()

    @property
    def measured(self) -> ConsumerMetrics:
        """The metrics one by one; `metrics` gives them all at once."""
        return self._measured

    # --- commits --------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetToCommit] | None = None
    ) -> None:
        """Commits these offsets, each that of the next record to read; without them, the offsets
        behind all records returned so far.

        Raises `CommitFailed` when the group has removed the member, and `RebalanceInProgress` when
        it has to poll first.
        """
        self._work.check_open()
        await self._work.commit(self._work.consumed() if offsets is None else offsets)

    async def committed(self, partitions: Partitions = ()) -> dict[TopicPartition, OffsetToCommit]:
        """The group's committed offsets of these partitions, or of all that are assigned.
        Partitions without one are left out."""
        self._work.check_open()
        wanted = [TopicPartition(*each) for each in partitions] or self._work.chosen(())
        return await self._work.commits.committed(wanted)

    def group_metadata(self) -> GroupMember:
        """The member and its generation, for `send_offsets` of a transaction: with these the
        coordinator fences a member that the group has removed. Raises `CommitFailed` when this one
        was removed."""
        self._work.check_open()
        return self._work.commits.member


async def _poll(work: ConsumerWork, timeout_s: float, most: int) -> list[Record]:
    records = await work.next(
        timeout_s, lambda left_s: work.fetcher.next_records(left_s, max_records=most)
    )
    return records or []
