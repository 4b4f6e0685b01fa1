"""The four codecs of a records section, in the framing that Java clients read and write.

`decompress` never produces more than `limit` bytes and never allocates more than that on a header's
word: a bomb costs at most `limit` bytes of memory and raises `DecompressedTooLarge`. A stream that
is cut short, damaged or followed by anything raises `CompressionFailed`. A batch that goes into a
log has to pass `check_portable` as well, so that clients in every language can read it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import cramjam

from onceflow.errors import CompressionFailed, DecompressedTooLarge
from onceflow.records.batch import Buffer, Codec

DECOMPRESSED_LIMIT = 64 * 1024 * 1024

_INT = struct.Struct(">i")
_BLOCK_SIZE = struct.Struct("<I")

# snappy-java's stream: magic, version 1, readable by version 1, then length-prefixed raw blocks.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + _INT.pack(1) + _INT.pack(1)
_XERIAL_BLOCK = 32 * 1024

# Java refuses LZ4 frames with linked blocks, the only kind cramjam makes; so the frame is written
# here: magic, version 1 + independent blocks, blocks of up to 64 KiB, checksum of those two bytes.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK = 64 * 1024
_LZ4_WITH_LEVEL: Final = "high_compression"
_LZ4_STORED = 0x80000000
_LZ4_END = b"\x00\x00\x00\x00"
_LZ4_MAGIC = _LZ4_HEADER[:4]
_LZ4_INDEPENDENT, _LZ4_BLOCK_SUMS, _LZ4_SIZE, _LZ4_SUM, _LZ4_DICTIONARY = 0x20, 0x10, 8, 4, 1

_ZSTD_LEVEL = 3  # zstd's own default, and Kafka's; cramjam's is 11, ten times slower

_FIRST_GUESS_MIN = 64 * 1024
# What cramjam says (Rust's WriteZero) when the output does not fit; all else is damage.
_OUTPUT_FULL = "failed to write whole buffer"


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """`data` as `codec` writes it; the very same object for `Codec.NONE`. Without a level it is
    the codec's own default; snappy has none."""
    if codec is Codec.NONE:
        return data
    return _COMPRESSORS[codec](data, level)


def decompress(codec: Codec, data: Buffer, limit: int = DECOMPRESSED_LIMIT) -> Buffer:
    """`data` decompressed; raises `DecompressedTooLarge` when that is longer than `limit`."""
    return Room().decompress(codec, data, limit)


class Room:
    """Reusable memory to decompress into: fresh memory costs more than the work done in it.

    It grows on demand and is freed with the object.
    """

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = bytearray()

    def decompress(self, codec: Codec, data: Buffer, limit: int = DECOMPRESSED_LIMIT) -> Buffer:
        """As the function of that name; the result is good until the next call."""
        if codec is Codec.NONE:
            _check_limit(codec, len(data), limit)
            return data
        if codec is Codec.SNAPPY:
            return self._decompress_snappy(data, limit)
        return self._decompress_stream(codec, data, limit)

    def _decompress_stream(self, codec: Codec, data: Buffer, limit: int) -> memoryview:
        """Tries ever larger outputs up to the limit; sizes that headers claim are not believed."""
        size = min(limit, max(4 * len(data), _FIRST_GUESS_MIN, len(self._memory)))
        while True:
            output = self._of(size)
            try:
                written = _STREAMS[codec].decompress_into(data, output)
            except cramjam.DecompressionError as error:
                if _OUTPUT_FULL not in str(error):
                    raise CompressionFailed(
                        f"{len(data)} bytes are not a {codec.name} stream: {error}"
                    ) from error
            else:
                return output[:written]
            if size >= limit:
                raise _too_large(codec, limit)
            size = min(limit, 4 * size)

    def _decompress_snappy(self, data: Buffer, limit: int) -> memoryview:
        view = memoryview(data)
        is_xerial = view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC
        blocks = list(_xerial_blocks(view)) if is_xerial else [view]
        try:
            sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
            # Before anything is allocated: these sizes are only what the sender claims.
            _check_limit(Codec.SNAPPY, sum(sizes), limit)
            output = self._of(sum(sizes))
            position = 0
            for block, size in zip(blocks, sizes, strict=True):
                cramjam.snappy.decompress_raw_into(block, output[position : position + size])
                position += size
        except cramjam.DecompressionError as error:
            raise CompressionFailed(
                f"{len(view)} bytes are not a SNAPPY stream: {error}"
            ) from error
        return output

    def _of(self, size: int) -> memoryview:
        if len(self._memory) < size:
            self._memory = bytearray()  # before there is more: never twice as much at a time
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]


def check_portable(codec: Codec, data: Buffer) -> None:
    """Raises `CompressionFailed` for data that only this code can read, not Apache Kafka's clients.

    Only LZ4 has such data: those clients read one frame of independent blocks without a dictionary,
    and silently skip everything behind that frame.
    """
    if codec is not Codec.LZ4:
        return
    view = memoryview(data)
    if view[: len(_LZ4_MAGIC)] != _LZ4_MAGIC or len(view) < len(_LZ4_HEADER):
        raise CompressionFailed("the LZ4 stream does not begin with a frame of its own format")
    flags = view[len(_LZ4_MAGIC)]
    if not flags & _LZ4_INDEPENDENT:
        raise CompressionFailed(
            "the LZ4 frame has linked blocks, which readers in Java refuse; write independent ones"
        )
    if flags & _LZ4_DICTIONARY:
        raise CompressionFailed("the LZ4 frame needs a dictionary, and no reader has it")
    end = _lz4_end(view, flags)
    if end != len(view):
        raise CompressionFailed(
            f"the LZ4 frame ends at byte {end} of {len(view)}, and readers in Java read no further"
        )


def _lz4_end(view: memoryview, flags: int) -> int:
    """The place behind a frame; its blocks are not looked into."""
    at = len(_LZ4_HEADER) + (8 if flags & _LZ4_SIZE else 0)
    behind_block = 4 if flags & _LZ4_BLOCK_SUMS else 0
    while True:
        if at + _BLOCK_SIZE.size > len(view):
            raise CompressionFailed(f"the LZ4 frame has no end in its {len(view)} bytes")
        (size,) = _BLOCK_SIZE.unpack_from(view, at)
        at += _BLOCK_SIZE.size
        if not size:
            return at + (4 if flags & _LZ4_SUM else 0)
        at += (size & ~_LZ4_STORED) + behind_block


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.gzip.compress(data, level=level))


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def _compress_snappy(data: Buffer, _level: int | None) -> bytes:
    parts = [_XERIAL_HEADER]
    for block in _blocks(data, _XERIAL_BLOCK):
        raw = bytes(cramjam.snappy.compress_raw(block))
        parts += (_INT.pack(len(raw)), raw)
    return b"".join(parts)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    mode: Literal["default", "high_compression"] = "default" if level is None else _LZ4_WITH_LEVEL
    parts: list[Buffer] = [_LZ4_HEADER]
    for block in _blocks(data, _LZ4_BLOCK):
        packed = bytes(
            cramjam.lz4.compress_block(block, store_size=False, mode=mode, compression=level)
        )
        if len(packed) < len(block):
            parts += (_BLOCK_SIZE.pack(len(packed)), packed)
        else:
            parts += (_BLOCK_SIZE.pack(len(block) | _LZ4_STORED), block)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _blocks(data: Buffer, size: int) -> Iterator[memoryview]:
    view = memoryview(data)
    for start in range(0, len(view), size):
        yield view[start : start + size]


_COMPRESSORS: dict[Codec, Callable[[Buffer, int | None], bytes]] = {
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}
_STREAMS: dict[Codec, Any] = {
    Codec.GZIP: cramjam.gzip,
    Codec.LZ4: cramjam.lz4,
    Codec.ZSTD: cramjam.zstd,
}


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise CompressionFailed(f"the SNAPPY stream ends inside its header ({len(view)} bytes)")
    while position < len(view):
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # another stream, which goes on where the first ended
            continue
        if position + _INT.size > len(view):
            raise CompressionFailed(f"the SNAPPY stream ends inside a length, byte {position}")
        (length,) = _INT.unpack_from(view, position)
        position += _INT.size
        if not 0 < length <= len(view) - position:
            raise CompressionFailed(f"SNAPPY block of {length} bytes at byte {position}")
        yield view[position : position + length]
        position += length


def _check_limit(codec: Codec, size: int, limit: int) -> None:
    if size > limit:
        raise _too_large(codec, limit)


def _too_large(codec: Codec, limit: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"the {codec.name} records section grows past {limit} bytes")
