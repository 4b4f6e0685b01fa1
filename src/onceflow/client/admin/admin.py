"""The admin client: describes and changes topics, settings, offsets, groups and transactions.

Each operation is also a function of a `Cluster`, for code that already has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Self

from onceflow.client.address import (
    comma_separated,
)
from onceflow.client.admin.groups import (
    COUNTED,
    commit_offsets,
    committed_offsets,
    delete_group,
    describe_group,
    lag_behind,
    list_groups,
    require_empty,
)
from onceflow.client.admin.topics import (
    BROKER_DEFAULT,
    add_partitions,
    alter_configs,
    broker_configs,
    create_topic,
    delete_topic,
    describe_topic,
    list_topics,
    topic_configs,
)
from onceflow.client.admin.transactions import (
    LONGEST_TIMEOUT_MS,
    describe_producers,
    describe_transaction,
    end_open_transaction,
    find_hanging,
    list_transactions,
    open_transactions,
)
from onceflow.client.consumer import PartitionLag
from onceflow.client.net import (
    Cluster,
)
from onceflow.client.offsets import delete_records, list_offsets, offset_ranges, offsets_at
from onceflow.client.settings import ClientSettings
from onceflow.client.types import (
    ActiveProducer,
    Config,
    GroupDescription,
    ListedGroup,
    ListedTransaction,
    OffsetRange,
    PartitionTransaction,
    TimedOffset,
    TopicDescription,
    TopicMetadata,
    TransactionDescription,
)
from onceflow.runtime import Clock, Net, Rand, RealClock
from onceflow.types import TopicPartition

__all__ = [
    "Admin",
    "list_topics",
    "describe_topic",
    "topic_configs",
    "broker_configs",
    "create_topic",
    "delete_topic",
    "add_partitions",
    "alter_configs",
    "list_offsets",
    "offset_ranges",
    "offsets_at",
    "delete_records",
    "lag_behind",
    "list_groups",
    "describe_group",
    "committed_offsets",
    "commit_offsets",
    "require_empty",
    "delete_group",
    "list_transactions",
    "describe_transaction",
    "describe_producers",
    "open_transactions",
    "find_hanging",
    "end_open_transaction",
]


class Admin:
    """Describes and changes a cluster; `async with` connects it.

    Settings have Kafka's names: with underscores as keywords, with dots in `more`. Tests pass their
    own `net`, `rand` and `clock`.

    >>> async def main() -> None:
    ...     async with Admin(bootstrap) as admin:
    ...         await admin.create_topic("bills", partitions=3)
    ...         print([topic.name for topic in await admin.list_topics()])
    >>> asyncio.run(main())
    ['bills', 'orders', 'payments']
    """

    def __init__(
        self,
        bootstrap: str,
        more: Mapping[str, object] | None = None,
        /,
        *,
        net: Net | None = None,
        rand: Rand | None = None,
        clock: Clock | None = None,
        **settings: object,
    ) -> None:
        made = ClientSettings.of({"bootstrap.servers": bootstrap, **(more or {})}, **settings)
        self._bootstrap = made.bootstrap_servers
        self.cluster = Cluster(made.bootstrap_servers, made.cluster(), net=net, rand=rand)
        self._clock = clock or RealClock()

    def __repr__(self) -> str:
        return f"<Admin of {comma_separated(self._bootstrap)}>"

    async def __aenter__(self) -> Self:
        await self.cluster.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cluster.close()

    # --- topics and settings --------------------------------------------------------------------

    async def list_topics(self) -> list[TopicMetadata]:
        """All topics, internal ones included, by name."""
        return await list_topics(self.cluster)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Everything about one topic; raises `TopicNotFound`."""
        return await describe_topic(self.cluster, name)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
    ) -> TopicMetadata:
        """Creates a topic and waits until it can be used."""
        return await create_topic(
            self.cluster,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
        )

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic with all its records; raises `TopicNotFound`."""
        await delete_topic(self.cluster, name)

    async def add_partitions(self, name: str, partitions: int) -> TopicMetadata:
        """Increases a topic's number of partitions to `partitions`."""
        return await add_partitions(self.cluster, name, partitions)

    async def topic_configs(self, name: str) -> tuple[Config, ...]:
        """The settings of a topic, by name, including those inherited from the broker."""
        return await topic_configs(self.cluster, name)

    async def broker_configs(self, node_id: int | None = None) -> tuple[Config, ...]:
        """The settings of a broker, by name; by default those of the first broker."""
        chosen = self.cluster.node_ids[0] if node_id is None else node_id
        return await broker_configs(self.cluster, chosen)

    async def alter_configs(
        self, name: str, *, changes: Mapping[str, str], removals: Iterable[str] = ()
    ) -> None:
        """Sets some settings of a topic, and resets others to the broker's."""
        await alter_configs(self.cluster, name, changes=changes, removals=removals)

    # --- offsets --------------------------------------------------------------------------------

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, TimedOffset]:
        """Offsets by a time in milliseconds, or by `EARLIEST` or `LATEST`. With `read_committed`
        the latest is the last stable offset."""
        return await list_offsets(self.cluster, wanted, read_committed=read_committed)

    async def offset_ranges(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetRange]:
        """The first offset and the high watermark of each partition; with `read_committed` the last
        stable offset instead of the high watermark."""
        return await offset_ranges(self.cluster, partitions, read_committed=read_committed)

    async def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """The offset of each partition's first record at or after this time, or its end if there is
        none."""
        return await offsets_at(self.cluster, partitions, timestamp_ms)

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Deletes all records below an offset (-1: all records); returns the new first offsets."""
        return await delete_records(self.cluster, before)

    # --- groups ---------------------------------------------------------------------------------

    async def list_groups(self) -> list[ListedGroup]:
        """The groups of the cluster, by name."""
        return await list_groups(self.cluster)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """A group, its members and its lag; raises `GroupNotFound`."""
        return await describe_group(self.cluster, group_id)

    async def lag_behind(
        self, committed: Mapping[TopicPartition, int], *, count_up_to: int | None = COUNTED
    ) -> dict[TopicPartition, PartitionLag]:
        """How many committed records lie between these offsets and the end. A span of up to
        `count_up_to` offsets (None: any) is read and counted; in a longer one each offset counts as
        a record."""
        return await lag_behind(self.cluster, committed, count_up_to=count_up_to)

    async def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """All offsets that a group has committed."""
        return await committed_offsets(self.cluster, group_id)

    async def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets for a group without members; raises `GroupNotEmpty` when it has some."""
        await commit_offsets(self.cluster, group_id, offsets)

    async def delete_group(self, group_id: str) -> None:
        """Deletes a group and its offsets; raises `GroupNotFound` or `GroupNotEmpty`."""
        await delete_group(self.cluster, group_id)

    # --- transactions ---------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        open_longer_than_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """The transactional ids, by name, that match one value of each filter."""
        return await list_transactions(
            self.cluster,
            states=states,
            producer_ids=producer_ids,
            open_longer_than_ms=open_longer_than_ms,
        )

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """A transaction, as its coordinator knows it; raises `TransactionNotFound`."""
        return await describe_transaction(self.cluster, transactional_id)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """The producers whose state the partitions' leaders keep."""
        return await describe_producers(self.cluster, partitions)

    async def open_transactions(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> list[PartitionTransaction]:
        """The open transactions in these partitions, or in all, with their producers. Consumers of
        committed records wait for them."""
        return await open_transactions(self.cluster, await self._or_all(partitions))

    async def find_hanging_transactions(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        longest_timeout_ms: int = LONGEST_TIMEOUT_MS,
    ) -> list[PartitionTransaction]:
        """Transactions that are open for longer than any timeout allows, and that no coordinator
        will end."""
        return await find_hanging(
            self.cluster,
            await self._or_all(partitions),
            now_ms=self._clock.wall_ms(),
            longest_timeout_ms=longest_timeout_ms,
        )

    async def abort_open_transaction(
        self, partition: TopicPartition, start_offset: int
    ) -> PartitionTransaction:
        """Aborts a hanging transaction in one partition; raises `TransactionNotFound`."""
        return await end_open_transaction(self.cluster, partition, start_offset, commit=False)

    async def _or_all(
        self, partitions: Iterable[TopicPartition] | None
    ) -> Iterable[TopicPartition]:
        if partitions is not None:
            return partitions
        return [
            TopicPartition(topic.name, each.partition)
            for topic in await list_topics(self.cluster)
            for each in topic.partitions
        ]
