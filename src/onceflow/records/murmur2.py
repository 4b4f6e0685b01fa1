"""Kafka's default partitioner: the 32-bit murmur2 of a key, positive, modulo the partitions.

Every client in every language must agree on this, or one key lands in two partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.errors import ColumnsMalformed

if TYPE_CHECKING:
    import pyarrow as pa

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """The hash as an unsigned 32-bit number."""
    length = len(key)
    h = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(key[start : start + 4], "little") * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> _R) * _M & _MASK)
    if whole < length:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
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
    return pa.array(result, pa.int32(), mask=column.is_null().to_numpy(zero_copy_only=False))
