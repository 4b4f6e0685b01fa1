"""The records of `__transaction_state`, byte for byte as Kafka writes and reads them.

A key is a 16-bit type, 0, and the transactional id. A value is a 16-bit version and a body; version
1 is written, 0 and 1 are read. Types and versions that a newer broker may write raise
`NewerRecord`, and not the error for bytes that are no record at all. A null value is a tombstone.
One tagged field is not Kafka's: the last epoch, without which a restarted coordinator could not
distinguish a repeated request from a zombie's. Kafka numbers its tags from 0 upwards; this one is
far above them, and every reader skips tags that it does not know.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from onceflow.errors import MessageMalformed, RecordError
from onceflow.records import unknown_number
from onceflow.txn.state import NONE, TransactionMetadata, TransactionState
from onceflow.types import TopicPartition
from onceflow.wire import primitives

VALUE_VERSION: Final = 1
LAST_EPOCH_TAG: Final = 10_000

_KEY_TYPE: Final = 0
_NEWEST_READ: Final = 1
_FIRST_FLEXIBLE: Final = 1
_INT8 = struct.Struct(">b")
_INT16, _INT32 = primitives.INT16, primitives.INT32
_INT64 = struct.Struct(">q")
_FIXED: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
_NO_TAGS: Final = b"\x00"
_IDLE: Final = frozenset(
    each.value
    for each in (
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    )
)
_PASSED_THROUGH: Final = frozenset({TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})

_T = TypeVar("_T")


class _Tag(NamedTuple):
    field: str
    layout: struct.Struct
    default: int
    """The value that is not written."""


_TAGS: Final[dict[int, _Tag]] = {
    0: _Tag("previous_producer_id", _INT64, NONE),
    1: _Tag("next_producer_id", _INT64, NONE),
    2: _Tag("client_version", _INT16, 0),
    3: _Tag("next_producer_epoch", _INT16, NONE),
    LAST_EPOCH_TAG: _Tag("last_epoch", _INT16, NONE),
}


class TransactionRecordMalformed(RecordError):
    """A record of `__transaction_state` contradicts its schema, or cannot be written in it."""


def encode_key(transactional_id: str) -> bytes:
    """The bytes of a key."""
    data = transactional_id.encode()
    if len(data) > primitives.LONGEST_STRING:
        raise TransactionRecordMalformed(
            f"a transactional id of {len(data)} bytes does not fit into a record: "
            f"{primitives.LONGEST_STRING} bytes are the limit"
        )
    return struct.pack(">hh", _KEY_TYPE, len(data)) + data


def decode_key(key: bytes) -> str:
    """Whose record it is."""
    return _named("the key of a transaction", lambda: _read_key(_Reader(key)))


def encode_value(transaction: TransactionMetadata) -> bytes:
    """The bytes of a transactional id's state."""
    state = transaction.state
    if state in _PASSED_THROUGH or (state is TransactionState.EMPTY and transaction.partitions):
        raise TransactionRecordMalformed(
            f"transactional id {transaction.transactional_id!r} cannot be written as {state.title} "
            f"with {len(transaction.partitions)} partitions"
        )
    fixed = _FIXED.pack(
        VALUE_VERSION,
        transaction.producer_id,
        transaction.epoch,
        transaction.timeout_ms,
        state.value,
    )
    times = _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    return fixed + _partitions(transaction) + times + _tags(transaction)


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """A transactional id's state, of any version."""
    what = f"the value of transactional id {transactional_id!r}"
    return _named(what, lambda: _read_value(transactional_id, _Reader(value)))


def may_follow(before: bytes, after: bytes | None) -> bool:
    """Whether a value may stand behind another of its id, as far as can be seen without decoding
    them: of all values of a log only the last ones are worth that. False means: look closely."""
    if len(before) < _FIXED.size:
        return False
    _, producer_id, epoch, _, state = _FIXED.unpack_from(before)
    if after is None:
        return state in _IDLE
    if len(after) < _FIXED.size:
        return False
    version, next_id, next_epoch, _, _ = _FIXED.unpack_from(after)
    goes_back: bool = next_id == producer_id and next_epoch < epoch
    return 0 <= version <= _NEWEST_READ and not goes_back


# --- writing ----------------------------------------------------------------------------------


def _partitions(transaction: TransactionMetadata) -> bytes:
    """By topic and number, so that equal states are equal bytes; null where there can be none."""
    if transaction.state is TransactionState.EMPTY:
        return primitives.uvarint(0)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    parts = [primitives.count(True, len(topics))]
    for topic, ids in topics.items():
        parts += [primitives.text(True, topic), primitives.count(True, len(ids))]
        parts += [_INT32.pack(each) for each in ids]
        parts.append(_NO_TAGS)
    return b"".join(parts)


def _tags(transaction: TransactionMetadata) -> bytes:
    written = [
        primitives.uvarint(number) + primitives.uvarint(tag.layout.size) + tag.layout.pack(value)
        for number, tag in _TAGS.items()
        if (value := getattr(transaction, tag.field)) != tag.default
    ]
    return primitives.uvarint(len(written)) + b"".join(written)


# --- reading ----------------------------------------------------------------------------------


def _named(what: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except MessageMalformed as error:
        raise TransactionRecordMalformed(f"{what}: {error}") from error


def _read_key(reader: _Reader) -> str:
    kind = reader.number(_INT16)
    if kind != _KEY_TYPE:
        raise unknown_number("a key of type", kind, _KEY_TYPE)
    transactional_id = reader.text()
    reader.end()
    return transactional_id


def _read_value(transactional_id: str, reader: _Reader) -> TransactionMetadata:
    reader.version()
    producer_id, epoch = reader.number(_INT64), reader.number(_INT16)
    timeout_ms, state = reader.number(_INT32), reader.state()
    partitions = reader.partitions()
    updated_ms, started_ms = reader.number(_INT64), reader.number(_INT64)
    fields = reader.tags()
    reader.end()
    return TransactionMetadata(
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        state,
        updated_ms,
        partitions=frozenset(partitions),
        started_ms=started_ms,
        **fields,
    )


class _Reader:
    """Reads fields one after the other; in flexible versions lengths are compact."""

    __slots__ = ("_at", "_buffer", "_flexible")

    def __init__(self, data: bytes) -> None:
        self._buffer = memoryview(data)
        self._at = 0
        self._flexible = False

    def version(self) -> None:
        version = self.number(_INT16)
        if not 0 <= version <= _NEWEST_READ:
            raise unknown_number("a value of version", version, _NEWEST_READ)
        self._flexible = version >= _FIRST_FLEXIBLE

    def number(self, layout: struct.Struct) -> int:
        value, self._at = primitives.read_int(layout, self._buffer, self._at)
        return value

    def text(self) -> str:
        value, self._at = primitives.read_text(self._flexible, self._buffer, self._at)
        if value is None:
            raise MessageMalformed("a text that must be there is null")
        return value

    def state(self) -> TransactionState:
        number = self.number(_INT8)
        known = {each.value for each in TransactionState if each not in _PASSED_THROUGH}
        if number not in known:
            raise MessageMalformed(f"status {number} is none that is ever written")
        return TransactionState(number)

    def partitions(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for _ in range(self._count()):
            topic = self.text()
            found += [TopicPartition(topic, self.number(_INT32)) for _ in range(self._count())]
            self._skip_tags()
        return found

    def tags(self) -> dict[str, int]:
        """The tagged fields that are known; others are passed over."""
        if not self._flexible:
            return {}
        fields: dict[str, int] = {}
        for _ in range(self._unsigned()):
            number, size = self._unsigned(), self._unsigned()
            end = self._at + size
            if end > len(self._buffer):
                raise MessageMalformed(f"tagged field {number} reaches past the end")
            tag = _TAGS.get(number)
            if tag is not None:
                fields[tag.field] = self.number(tag.layout)
            if tag is not None and self._at != end:
                raise MessageMalformed(f"tagged field {number} has {size} bytes")
            self._at = end
        return fields

    def end(self) -> None:
        if self._at != len(self._buffer):
            raise MessageMalformed(f"{len(self._buffer) - self._at} bytes are left over")

    def _count(self) -> int:
        count, self._at = primitives.read_count(self._flexible, self._buffer, self._at)
        return max(count, 0)

    def _unsigned(self) -> int:
        value, self._at = primitives.read_uvarint(self._buffer, self._at)
        return value

    def _skip_tags(self) -> None:
        if self._flexible:
            self._at = primitives.skip_tags(self._buffer, self._at)
