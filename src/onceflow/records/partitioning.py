"""Chooses partitions: of a topic for a key (murmur2), of an internal topic for an id (Java's hash).

Records follow Kafka's default partitioner: the 32-bit murmur2 of the key, made positive, modulo the
number of partitions. Clients in every language must agree on it, or one key lands in two
partitions. A coordinator keeps a group or a transactional id in the partition that
`String.hashCode` chooses; Kafka's tools choose in the same way, so that they ask about the right
one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from onceflow.errors import ColumnsMalformed

if TYPE_CHECKING:
    import pyarrow as pa


_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF


class _Words(dict[int, Callable[[bytes], tuple[int, ...]]]):
    """Reads so many whole words from the start of a key."""

    def __missing__(self, count: int) -> Callable[[bytes], tuple[int, ...]]:
        read = struct.Struct(f"<{count}I").unpack_from
        if count < _KEPT:
            self[count] = read
        return read


_KEPT = 256
_WORDS = _Words()


def murmur2(key: bytes) -> int:
    """The hash as an unsigned 32-bit number."""
    # Numbers stand where names would be looked up for every word; bits above 32 that only go into
    # products and sums are cut off once, at the end.
    length = len(key)
    h = _SEED ^ length
    count = length >> 2
    if count:
        for k in _WORDS[count](key):
            k = k * 0x5BD1E995 & 0xFFFFFFFF
            h = (h * 0x5BD1E995 ^ (k ^ k >> 24) * 0x5BD1E995) & 0xFFFFFFFF
    if length & 3:
        h = (h ^ int.from_bytes(key[count << 2 :], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return h ^ h >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of `partitions` that a keyed record belongs to."""
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_for_keys(keys: pa.BinaryArray, partitions: int) -> pa.Int32Array:
    """`partition_for_key` of a whole binary column, as int32; a null key gives null."""
    import numpy as np
    import pyarrow as pa

    from onceflow.records.arrow import binary_source, to_binary
    from onceflow.records.murmur2_kernel import partition_column

    if partitions < 1:
        raise ColumnsMalformed(f"{partitions} partitions cannot hold a key")
    column = to_binary(keys, "key")
    result = np.empty(len(column), dtype=np.int32)
    if len(column):
        partition_column(np.array(binary_source(column), dtype=np.int64), partitions, result)
    if not column.null_count:
        return pa.array(result, pa.int32())
    return pa.array(result, pa.int32(), mask=column.is_null().to_numpy(zero_copy_only=False))


def stray_partition(keys: pa.BinaryArray, partitions: int, home: int) -> int | None:
    """The partition of the first key that does not belong to `home`; None when all do. Records
    without a key belong everywhere."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: Any = partitions_for_keys(keys, partitions)
    strays: Any = pc.not_equal(found, pa.scalar(home, pa.int32()))
    at: int = pc.index(strays, True).as_py()
    return None if at < 0 else found[at].as_py()


_LONGEST_CACHED = 249
"""The cache does not hold longer texts: their length is the client's choice."""


def coordinator_partition(text: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` or `__transaction_state`, which has `partitions`, that
    keeps a group id or a transactional id."""
    choose = _cached if len(text) <= _LONGEST_CACHED else partition_by_hash
    return choose(text, partitions)


def partition_by_hash(text: str, partitions: int) -> int:
    """The hash without its sign, modulo the partitions; -2^31 cannot lose it in Java: it is 0."""
    unsigned = java_hash(text)
    magnitude = unsigned if unsigned < 2**31 else 2**32 - unsigned
    return magnitude % 2**31 % partitions


# Asked for every commit of offsets, and four times for each transaction; the hash is a walk over
# the text.
_cached = lru_cache(maxsize=2000)(partition_by_hash)


def java_hash(text: str) -> int:
    """`String.hashCode` as an unsigned 32-bit number: Java hashes UTF-16 code units."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] | units[at + 1] << 8)) & 0xFFFF_FFFF
    return value
