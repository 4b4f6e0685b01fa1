"""murmur2 over a binary column, compiled; the rules are in `murmur2`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.records.raw_memory import helper, kernel, load_i32, load_u8

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SEED = 0x9747B28C
_M = 0x5BD1E995
_LOW_32_BITS = 0xFFFFFFFF


@helper
def _times_m(number: int) -> int:
    """What leaves 64 bits has no part in the lower 32."""
    return (number * _M) & _LOW_32_BITS


@helper
def _hash(data: int, length: int) -> int:
    h = (_SEED ^ length) & _LOW_32_BITS
    whole = length & ~3
    for start in range(0, whole, 4):
        k = _times_m(int(load_i32(data + start)))
        h = _times_m(h) ^ _times_m(k ^ (k >> 24))
    if whole < length:
        tail = 0
        for index in range(length - whole):
            tail |= int(load_u8(data + whole + index)) << (8 * index)
        h = _times_m(h ^ tail)
    h = _times_m(h ^ (h >> 13))
    return h ^ (h >> 15)


@kernel("void(int64[::1], int64, int32[::1])")
def partition_column(source: NDArray[np.int64], partitions: int, result: NDArray[np.int32]) -> None:
    """The partition of each key; `source` is a column as `write_kernels.Binary` lays it out."""
    offsets, data = int(source[0]), int(source[1])
    for row in range(result.shape[0]):
        start = int(load_i32(offsets + 4 * row))
        end = int(load_i32(offsets + 4 * row + 4))
        result[row] = (_hash(data + start, end - start) & 0x7FFFFFFF) % partitions
