"""murmur2 over a binary column, compiled; the rules are in `murmur2`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import uint32

from onceflow.records.raw_memory import helper, kernel, load_i32, load_u8

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SEED = uint32(0x9747B28C)
_M = uint32(0x5BD1E995)


@helper
def _hash(data: int, length: int) -> Any:
    h = uint32(_SEED ^ uint32(length))
    whole = length & ~3
    for start in range(0, whole, 4):
        k = uint32(uint32(load_i32(data + start)) * _M)
        k = uint32(uint32(k ^ (k >> uint32(24))) * _M)
        h = uint32(uint32(h * _M) ^ k)
    if whole < length:
        tail = uint32(0)
        for index in range(length - whole):
            tail |= uint32(load_u8(data + whole + index)) << uint32(8 * index)
        h = uint32(uint32(h ^ tail) * _M)
    h = uint32(uint32(h ^ (h >> uint32(13))) * _M)
    return uint32(h ^ (h >> uint32(15)))


@kernel("void(int64[::1], int64, int32[::1])")
def partition_column(source: NDArray[np.int64], partitions: int, result: NDArray[np.int32]) -> None:
    """The partition of each key; `source` is a column as `write_kernels.Binary` lays it out."""
    for row in range(result.shape[0]):
        start = int(load_i32(source[0] + 4 * row))
        end = int(load_i32(source[0] + 4 * row + 4))
        result[row] = int(_hash(source[1] + start, end - start) & uint32(0x7FFFFFFF)) % partitions
