"""The records of `__consumer_offsets`, byte for byte as Kafka writes and reads them.

A key is a 16-bit type and a body: 0 and 1 name a committed offset (1 is written), 2 a group. A
value is a 16-bit version and a body; offsets and groups are written in version 3, versions 0 to 4
are read. A null value is a tombstone. Keys of other types belong to protocols that a newer broker
may speak. They raise `NewerRecord`, as unknown versions do, and not the error for bytes that are no
record at all.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from onceflow.errors import RecordError
from onceflow.records import unknown_number
from onceflow.wire import LONGEST_STRING

OFFSET_VALUE_VERSION = 3
GROUP_VALUE_VERSION = 3

_OFFSET_KEY_TYPES = (0, 1)
_GROUP_KEY_TYPE = 2
_NEWEST_READ = 4
_FIRST_FLEXIBLE = 4
LARGEST_WRITE = 32 << 20
"""The most bytes of records in one write, twice the largest request: the record of each offset
repeats the group's id, and the group's record holds what all its members sent."""


class GroupRecordMalformed(RecordError):
    """A record of `__consumer_offsets` contradicts its schema, or cannot be written in it."""


class OffsetsTooLarge(GroupRecordMalformed):
    """Offsets that are committed at once make more bytes than are written at once."""


class OffsetKey(NamedTuple):
    """Whose offset, and where."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Which group."""

    group_id: str


Key: TypeAlias = OffsetKey | GroupKey


class OffsetValue(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    """Set by old clients that chose a retention of their own (version 1)."""


class MemberValue(NamedTuple):
    """A member of a group, with what it asked for and what it was given."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A generation of a group; without members, an empty group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    """When the group came into this state, or -1."""
    members: tuple[MemberValue, ...]


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    """The bytes of a key."""
    if isinstance(key, GroupKey):
        return struct.pack(">h", _GROUP_KEY_TYPE) + _string(key.group_id)
    head = struct.pack(">h", _OFFSET_KEY_TYPES[-1]) + _string(key.group_id) + _string(key.topic)
    return head + struct.pack(">i", key.partition)


def decode_key(key: bytes) -> Key:
    """What a record is about."""
    reader = _Reader(key)
    kind = reader.number(">h")
    if kind in _OFFSET_KEY_TYPES:
        return OffsetKey(reader.string(), reader.string(), reader.number(">i"))
    if kind == _GROUP_KEY_TYPE:
        return GroupKey(reader.string())
    raise unknown_number("a key of type", kind, _GROUP_KEY_TYPE)


def encode_offset(value: OffsetValue) -> bytes:
    """The bytes of a committed offset."""
    head = struct.pack(">hqi", OFFSET_VALUE_VERSION, value.offset, value.leader_epoch)
    return head + _string(value.metadata) + struct.pack(">q", value.commit_timestamp_ms)


def decode_offset(value: bytes) -> OffsetValue:
    """A committed offset of any version."""
    reader = _Reader(value)
    version = reader.version()
    offset = reader.number(">q")
    leader_epoch = reader.number(">i") if version >= 3 else -1
    metadata = reader.string()
    committed = reader.number(">q")
    expires = reader.number(">q") if version == 1 else -1
    return OffsetValue(
        offset, leader_epoch, metadata, committed, None if expires == -1 else expires
    )


def encode_group(value: GroupValue) -> bytes:
    """The bytes of a group."""
    parts = [
        struct.pack(">h", GROUP_VALUE_VERSION),
        _string(value.protocol_type),
        struct.pack(">i", value.generation),
        _nullable_string(value.protocol),
        _nullable_string(value.leader),
        struct.pack(">qi", value.state_timestamp_ms, len(value.members)),
    ]
    for member in value.members:
        parts += [
            _string(member.member_id),
            _nullable_string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        ]
    data = b"".join(parts)
    if len(data) > LARGEST_WRITE:
        raise GroupRecordMalformed(
            f"a group of {len(value.members)} members has {len(data)} bytes: {LARGEST_WRITE} bytes "
            "are the limit"
        )
    return data


def decode_group(value: bytes) -> GroupValue:
    """A group of any version."""
    reader = _Reader(value)
    version = reader.version()
    return GroupValue(
        protocol_type=reader.string(),
        generation=reader.number(">i"),
        protocol=reader.nullable_string(),
        leader=reader.nullable_string(),
        state_timestamp_ms=reader.number(">q") if version >= 2 else -1,
        members=tuple([_decode_member(reader, version) for _ in range(reader.array())]),
    )


def _decode_member(reader: _Reader, version: int) -> MemberValue:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.number(">i") if version >= 1 else -1
    session_timeout_ms = reader.number(">i")
    member = MemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        # Before version 1 the session timeout served for both.
        session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
        session_timeout_ms,
        reader.binary(),
        reader.binary(),
    )
    reader.tags()
    return member


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > LONGEST_STRING:
        raise GroupRecordMalformed(
            f"a text of {len(data)} bytes does not fit into a group's record: "
            f"{LONGEST_STRING} bytes are the limit"
        )
    return struct.pack(">h", len(data)) + data


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class _Reader:
    """Reads fields one after the other; in flexible versions lengths are compact."""

    __slots__ = ("_at", "_data", "_flexible")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._flexible = False

    def version(self) -> int:
        version = self.number(">h")
        if not 0 <= version <= _NEWEST_READ:
            raise unknown_number("a value of version", version, _NEWEST_READ)
        self._flexible = version >= _FIRST_FLEXIBLE
        return version

    def number(self, layout: str) -> int:
        size = struct.calcsize(layout)
        number: int = struct.unpack(layout, self._take(size))[0]
        return number

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise GroupRecordMalformed("a text that must be there is null")
        return text

    def nullable_string(self) -> str | None:
        length = self._length(">h")
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise GroupRecordMalformed(f"a text is not UTF-8: {error}") from error

    def binary(self) -> bytes:
        return self._take(max(self._length(">i"), 0))

    def array(self) -> int:
        return max(self._length(">i"), 0)

    def tags(self) -> None:
        """Passes over the tagged fields that end a struct of a flexible version."""
        if self._flexible:
            for _ in range(self._unsigned()):
                self._unsigned()
                self._take(self._unsigned())

    def _length(self, layout: str) -> int:
        return self._unsigned() - 1 if self._flexible else self.number(layout)

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise GroupRecordMalformed("a variable-length number does not end")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise GroupRecordMalformed(
                f"{size} bytes are due at {self._at} of a record of {len(self._data)} bytes"
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken
