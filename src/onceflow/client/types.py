"""What brokers say about a cluster: small frozen values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from onceflow.types import TopicPartition as TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
"""Stand for a timestamp where offsets are asked for by time."""


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Where a partition lives; a leader of -1 means that it has none now."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as the cluster's metadata has it, partitions in order."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]

    @property
    def replication_factor(self) -> int:
        return min((len(each.replicas) for each in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class Config:
    """A setting of a topic or broker. `is_set` says that it was set on that itself."""

    name: str
    value: str | None
    is_set: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What a partition holds: from `earliest` up to, not including, `latest`."""

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """All there is to say about a topic."""

    topic: TopicMetadata
    configs: tuple[Config, ...]
    offsets: dict[int, OffsetRange]


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """An offset that was asked for by time; -1 when no record is that late."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """Where a log began and ended when it was last read; -1 for what the broker did not say."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    """Up to where readers of committed records may read."""


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """The last leader epoch up to the one that was asked about, and the offset behind its last
    record; -1 where the log knows of none."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id as the list of transactions has it."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What the coordinator knows of a transactional id."""

    transactional_id: str
    coordinator: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    """When the transaction began; None when none is open."""
    partitions: frozenset[TopicPartition]
    """Those that still need a marker."""


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer as the leader of a partition remembers it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    """Of the coordinator that wrote its last marker; -1 before the first."""
    transaction_start_offset: int | None
    """Where its open transaction begins; None when none is open."""


@dataclass(frozen=True, slots=True)
class PartitionTransaction:
    """A transaction that is open in one partition, as the partition's leader sees it."""

    partition: TopicPartition
    producer: ActiveProducer
    start_offset: int
    transactional_id: str | None = None
    """Whose it is, when any coordinator knows."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as the list of groups has it."""

    group_id: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group, and which partitions it was given."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """How far a group has come in one partition."""

    partition: TopicPartition
    committed: int | None
    """None where the group has committed nothing."""
    range: OffsetRange | None
    """None where the topic is gone."""
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        """How many offsets there are that the group has not committed."""
        if self.committed is None or self.range is None:
            return None
        return max(0, self.range.latest - max(self.committed, self.range.earliest))


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """All there is to say about a consumer group."""

    group_id: str
    state: str
    protocol: str
    coordinator: str
    members: tuple[MemberDescription, ...]
    offsets: tuple[GroupOffset, ...]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of the partitions of each topic, the way requests name them."""
    grouped: dict[str, list[int]] = {}
    for partition in partitions:
        grouped.setdefault(partition.topic, []).append(partition.partition)
    return grouped
