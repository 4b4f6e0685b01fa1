"""What a transactional producer asks brokers for, as small values, and their bytes by hand.

Only the flexible versions are spoken, which every broker since Apache Kafka 2.8 offers. Whether a
transaction is of the older or the newer protocol is said by the versions of its requests alone, so
each request names the version to use: the same in every resend.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, TypeAlias

from onceflow.client.errors import ProducerError
from onceflow.client.net import NEWEST_WITHOUT_TRANSACTION_V2, VersionRange
from onceflow.client.prepared import PreparedTransaction
from onceflow.types import TopicPartition
from onceflow.wire import (
    INT16,
    INT32,
    TRANSACTION_V2,
    ApiKey,
    ErrorCode,
    count,
    read_count,
    read_int,
    read_text,
    skip_tags,
    text,
)

INT64: Final = struct.Struct(">q")
NO_PRODUCER: Final = -1
_FLEXIBLE: Final = True
_NO_TAGS: Final = b"\x00"
_PRODUCER: Final = struct.Struct(">qh")
_OFFSET: Final = struct.Struct(">iqi")
_OFFSETS_ARE: Final = "pass a mapping such as {TopicPartition('orders', 0): 43}"

_SPOKEN: Final[Mapping[ApiKey, VersionRange]] = {
    ApiKey.INIT_PRODUCER_ID: VersionRange(3, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: VersionRange(3, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: VersionRange(3, 4),
    ApiKey.TXN_OFFSET_COMMIT: VersionRange(3, 5),
    ApiKey.END_TXN: VersionRange(3, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
}
TWO_PHASE: Final = VersionRange(6, 6)
"""Of InitProducerId: a producer that sends it takes part in two-phase commits."""


class ProducerIdentity(NamedTuple):
    """Who a transactional producer is; brokers refuse all but the newest epoch."""

    transactional_id: str
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER

    def __str__(self) -> str:
        return f"{self.transactional_id!r} ({self.producer_id}, epoch {self.producer_epoch})"


class OffsetToCommit(NamedTuple):
    """How far a group has come in a partition: the next offset to read, and a note."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Whose offsets are committed. With the generation the broker fences members that are out of
    date; -1 means that the group's offsets are kept by hand."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class OffsetsInvalid(ProducerError):
    """Offsets for a transaction are not what it takes; nothing of them was sent."""


def offset_rows(offsets: object) -> dict[TopicPartition, OffsetToCommit]:
    """What callers give, made sure of: a mistake found later would cost them the transaction."""
    if not isinstance(offsets, Mapping):
        raise OffsetsInvalid(f"the offsets are {offsets!r}; {_OFFSETS_ARE}")
    rows = {}
    for place, value in offsets.items():
        match place, OffsetToCommit(value) if isinstance(value, int) else value:
            case (str() as topic, int() as partition), OffsetToCommit(offset=int()) as row:
                rows[TopicPartition(topic, partition)] = row
            case _:
                raise OffsetsInvalid(f"an offset is {place!r}: {value!r}; {_OFFSETS_ARE}")
    return rows


# --- requests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    """A new epoch for a transactional id; what was open under it is aborted."""

    api: ClassVar[ApiKey] = ApiKey.INIT_PRODUCER_ID
    identity: ProducerIdentity
    """With an epoch: only if that is still the newest one."""
    timeout_ms: int
    versions: VersionRange = _SPOKEN[ApiKey.INIT_PRODUCER_ID]
    keeps_prepared: bool = False
    """What was open stays so, to be ended by this producer."""

    @property
    def is_two_phase(self) -> bool:
        """Whether transactions have no timeout: they end when their producer says how."""
        return self.versions == TWO_PHASE

    def body(self, version: int) -> bytes:
        name, producer_id, epoch = self.identity
        known = _PRODUCER.pack(producer_id, epoch)
        phases = bytes((True, self.keeps_prepared)) if self.is_two_phase else b""
        timeout = INT32.pack(self.timeout_ms)
        return b"".join((text(_FLEXIBLE, name), timeout, known, phases, _NO_TAGS))


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Partitions join the transaction; of the older protocol."""

    api: ClassVar[ApiKey] = ApiKey.ADD_PARTITIONS_TO_TXN
    identity: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    versions: VersionRange = _SPOKEN[ApiKey.ADD_PARTITIONS_TO_TXN]

    def body(self, version: int) -> bytes:
        topics = _by_topic(self.partitions)
        parts = [_who(self.identity), count(_FLEXIBLE, len(topics))]
        for topic, numbers in topics.items():
            parts += (text(_FLEXIBLE, topic), count(_FLEXIBLE, len(numbers)))
            parts += map(INT32.pack, numbers)
            parts.append(_NO_TAGS)
        return b"".join((*parts, _NO_TAGS))


@dataclass(frozen=True, slots=True)
class AddOffsets:
    """The offsets of a group join the transaction; of the older protocol."""

    api: ClassVar[ApiKey] = ApiKey.ADD_OFFSETS_TO_TXN
    identity: ProducerIdentity
    group_id: str
    versions: VersionRange = _SPOKEN[ApiKey.ADD_OFFSETS_TO_TXN]

    def body(self, version: int) -> bytes:
        return _who(self.identity) + text(_FLEXIBLE, self.group_id) + _NO_TAGS


@dataclass(frozen=True, slots=True)
class TxnOffsetCommit:
    """Offsets of a group that hold when the transaction is committed. For the group's coordinator,
    all others are for the transaction's."""

    api: ClassVar[ApiKey] = ApiKey.TXN_OFFSET_COMMIT
    identity: ProducerIdentity
    member: GroupMember
    offsets: tuple[tuple[TopicPartition, OffsetToCommit], ...]
    versions: VersionRange

    def body(self, version: int) -> bytes:
        (name, producer_id, epoch), member = self.identity, self.member
        offsets = dict(self.offsets)
        topics = _by_topic(offsets)
        parts = [
            text(_FLEXIBLE, name),
            text(_FLEXIBLE, member.group_id),
            _PRODUCER.pack(producer_id, epoch),
            INT32.pack(member.generation),
            text(_FLEXIBLE, member.member_id),
            text(_FLEXIBLE, member.instance_id),
            count(_FLEXIBLE, len(topics)),
        ]
        for topic, numbers in topics.items():
            parts += (text(_FLEXIBLE, topic), count(_FLEXIBLE, len(numbers)))
            for number in numbers:
                offset, metadata, leader_epoch = offsets[TopicPartition(topic, number)]
                parts.append(_OFFSET.pack(number, offset, leader_epoch))
                parts += (text(_FLEXIBLE, metadata), _NO_TAGS)
            parts.append(_NO_TAGS)
        return b"".join((*parts, _NO_TAGS))


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Commits or aborts."""

    api: ClassVar[ApiKey] = ApiKey.END_TXN
    identity: ProducerIdentity
    committed: bool
    versions: VersionRange

    def body(self, version: int) -> bytes:
        return _who(self.identity) + (b"\x01" if self.committed else b"\x00") + _NO_TAGS


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    """Who has a transactional id, and whether anything is open under it: changes nothing."""

    api: ClassVar[ApiKey] = ApiKey.DESCRIBE_TRANSACTIONS
    identity: ProducerIdentity
    versions: VersionRange = _SPOKEN[ApiKey.DESCRIBE_TRANSACTIONS]

    def body(self, version: int) -> bytes:
        name = self.identity.transactional_id
        return count(_FLEXIBLE, 1) + text(_FLEXIBLE, name) + _NO_TAGS


TransactionRequest: TypeAlias = (
    InitProducerIdRequest
    | AddPartitions
    | AddOffsets
    | TxnOffsetCommit
    | EndTxn
    | DescribeTransaction
)


def versions_for(api: ApiKey, transaction_version: int) -> VersionRange:
    """Those that mean this protocol, and not the other."""
    spoken = _SPOKEN[api]
    newest_of_old = NEWEST_WITHOUT_TRANSACTION_V2[api]
    if transaction_version >= TRANSACTION_V2:
        return VersionRange(newest_of_old + 1, spoken.newest)
    return VersionRange(spoken.oldest, newest_of_old)


def _who(identity: ProducerIdentity) -> bytes:
    name, producer_id, epoch = identity
    return text(_FLEXIBLE, name) + _PRODUCER.pack(producer_id, epoch)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


# --- answers ------------------------------------------------------------------------------------


class TransactionResponse(NamedTuple):
    """What a broker said: one code, or one for each partition; and who the producer is now."""

    code: int = 0
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER
    partitions: tuple[tuple[TopicPartition, int], ...] = ()
    prepared: PreparedTransaction = PreparedTransaction()
    """What was kept open for this producer."""
    transaction_state: str = ""
    """As the coordinator describes it."""


def read_answer(
    request: TransactionRequest, version: int, buffer: memoryview
) -> TransactionResponse:
    """The answer to a request of that version; raises `MessageMalformed`."""
    _, at = read_int(INT32, buffer, 0)  # for how long the broker had it wait
    if isinstance(request, AddPartitions | TxnOffsetCommit):
        return TransactionResponse(partitions=tuple(_read_partitions(buffer, at)))
    if isinstance(request, DescribeTransaction):
        return _read_description(buffer, at)
    code, at = read_int(INT16, buffer, at)
    first_with_identity = request.versions.oldest
    if isinstance(request, EndTxn):
        first_with_identity = NEWEST_WITHOUT_TRANSACTION_V2[ApiKey.END_TXN] + 1
    if isinstance(request, AddOffsets) or version < first_with_identity:
        return TransactionResponse(code)
    producer_id, at = read_int(INT64, buffer, at)
    producer_epoch, at = read_int(INT16, buffer, at)
    if not (isinstance(request, InitProducerIdRequest) and request.is_two_phase):
        return TransactionResponse(code, producer_id, producer_epoch)
    kept_id, at = read_int(INT64, buffer, at)
    kept_epoch, _ = read_int(INT16, buffer, at)
    prepared = PreparedTransaction(kept_id, kept_epoch)
    return TransactionResponse(code, producer_id, producer_epoch, prepared=prepared)


def _read_description(buffer: memoryview, at: int) -> TransactionResponse:
    """Of the one transactional id that was asked for; its partitions do not matter here."""
    described, at = read_count(_FLEXIBLE, buffer, at)
    if not described:
        return TransactionResponse(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    code, at = read_int(INT16, buffer, at)
    _, at = read_text(_FLEXIBLE, buffer, at)
    state, at = read_text(_FLEXIBLE, buffer, at)
    _, at = read_int(INT32, buffer, at)  # its timeout
    _, at = read_int(INT64, buffer, at)  # since when it is open
    producer_id, at = read_int(INT64, buffer, at)
    producer_epoch, _ = read_int(INT16, buffer, at)
    return TransactionResponse(code, producer_id, producer_epoch, transaction_state=state or "")


def _read_partitions(buffer: memoryview, at: int) -> list[tuple[TopicPartition, int]]:
    found = []
    topics, at = read_count(_FLEXIBLE, buffer, at)
    for _ in range(topics):
        topic, at = read_text(_FLEXIBLE, buffer, at)
        partitions, at = read_count(_FLEXIBLE, buffer, at)
        for _ in range(partitions):
            number, at = read_int(INT32, buffer, at)
            code, at = read_int(INT16, buffer, at)
            at = skip_tags(buffer, at)
            found.append((TopicPartition(topic or "", number), code))
        at = skip_tags(buffer, at)
    return found
