"""The primitive fields that are read and written by hand, in headers and in the hot messages."""

from __future__ import annotations

import struct

from onceflow.errors import MessageMalformed

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")


LONGEST_STRING = 2**15 - 1
"""In bytes, in every version: where a length could say more, Apache Kafka refuses it, too. So what
one version brings another can always repeat."""
LONGEST_NAME = 249
"""Of a topic. Longer strings are served, and no cache keeps them."""
MOST_ELEMENTS = 20_000
"""Of all arrays of a request together. Each takes some ten microseconds to read, to look up and to
answer, in which no other is served; partitions come by the thousand, not by ten thousands."""


class Budget:
    """How many elements the arrays of one message may still have: each becomes an object, and
    millions of two bytes each would make everybody wait."""

    __slots__ = ("_left",)

    def __init__(self, most: int = MOST_ELEMENTS) -> None:
        self._left = most

    def spend(self, count: int) -> None:
        """Raises `MessageMalformed` when it is used up; a null array, -1, costs nothing."""
        if count > 0:
            self._left -= count
            if self._left < 0:
                raise MessageMalformed("more elements in one message than the broker allows")


def read_uvarint(buffer: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits, and the place behind it."""
    if at < len(buffer) and (value := buffer[at]) < 0x80:  # as most are
        return value, at + 1
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(buffer):
            raise MessageMalformed(f"a varint is cut off at byte {at}")
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MessageMalformed(f"a varint of more than 5 bytes ends at byte {at}")


def read_int(kind: struct.Struct, buffer: memoryview, at: int) -> tuple[int, int]:
    """An integer of fixed size, and the place behind it."""
    end = at + kind.size
    if end > len(buffer):
        raise MessageMalformed(f"the message is cut off at byte {at}")
    value: int = kind.unpack_from(buffer, at)[0]
    return value, end


def read_count(flexible: bool, buffer: memoryview, at: int) -> tuple[int, int]:
    """The number of elements of an array, each of which takes a byte at least; null is none."""
    if flexible:
        count, at = read_uvarint(buffer, at)
        count -= 1
    else:
        count, at = read_int(INT32, buffer, at)
    if count > len(buffer) - at:
        raise MessageMalformed(f"{count} elements at byte {at}, {len(buffer) - at} bytes are left")
    return count, at


def read_slice(
    flexible: bool, prefix: struct.Struct, buffer: memoryview, at: int
) -> tuple[memoryview | None, int]:
    """The bytes behind a length, not copied; None when null."""
    if flexible:
        length, at = read_uvarint(buffer, at)
        length -= 1
    else:
        length, at = read_int(prefix, buffer, at)
    if length < 0:
        return None, at
    end = at + length
    if end > len(buffer):
        raise MessageMalformed(f"{length} bytes at byte {at}, {len(buffer) - at} are left")
    return buffer[at:end], end


def read_text(flexible: bool, buffer: memoryview, at: int) -> tuple[str | None, int]:
    """A string; None when null."""
    data, end = read_slice(flexible, INT16, buffer, at)
    if data is None:
        return None, end
    check_string(len(data), at)
    try:
        return str(data, "utf-8"), end
    except UnicodeDecodeError as error:
        raise MessageMalformed(f"a string at byte {at} is not UTF-8") from error


def check_string(length: int, at: int) -> None:
    """Raises `MessageMalformed` for a string that is too long."""
    if length > LONGEST_STRING:
        raise MessageMalformed(
            f"a string of {length} bytes at byte {at}; allowed are {LONGEST_STRING}"
        )


def cut_string(value: str) -> str:
    """As much of a string as may be sent, in whole characters."""
    data = value.encode()
    return value if len(data) <= LONGEST_STRING else data[:LONGEST_STRING].decode(errors="ignore")


def skip_tags(buffer: memoryview, at: int) -> int:
    """Past tagged fields of which none is of interest."""
    if at < len(buffer) and buffer[at] == 0:  # as almost always
        return at + 1
    count, at = read_uvarint(buffer, at)
    if count > len(buffer) - at:
        raise MessageMalformed(f"{count} tagged fields at byte {at}")
    for _ in range(count):
        _, at = read_uvarint(buffer, at)
        size, at = read_uvarint(buffer, at)
        at += size
        if at > len(buffer):
            raise MessageMalformed("a tagged field reaches past the end of the message")
    return at


def text(flexible: bool, value: str | None) -> bytes:
    """The bytes of a nullable string."""
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    data = value.encode()
    return (uvarint(len(data) + 1) if flexible else INT16.pack(len(data))) + data


def count(flexible: bool, number: int) -> bytes:
    """The bytes in front of an array."""
    return uvarint(number + 1) if flexible else INT32.pack(number)


def uvarint(value: int) -> bytes:
    """The bytes of an unsigned varint."""
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [bytes([value]) for value in range(0x80)]
