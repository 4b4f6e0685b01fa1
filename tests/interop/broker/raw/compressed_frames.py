"""Records sections compressed in every way that a format allows, and in some that none allows.

Made by hand where no library makes them: what matters is which of them a reader in Java can read.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cramjam

MASK32: Final = 2**32 - 1
MASK64: Final = 2**64 - 1
PRIMES32: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
PRIMES64: Final = (
    11400714785074694791,
    14029467366897019727,
    1609587929392839161,
    9650029242287828579,
    2870177450012600261,
)

LZ4_MAGIC: Final = struct.pack("<I", 0x184D2204)
LZ4_END: Final = bytes(4)
INDEPENDENT, BLOCK_SUMS, SIZE, SUM, RESERVED, DICTIONARY = 0x20, 0x10, 0x08, 0x04, 0x02, 0x01
VERSION_1: Final = 0x40
BLOCKS_OF_64_KB: Final = 0x40
SKIPPABLE: Final = struct.pack("<II", 0x184D2A50, 5) + b"hello"

ZSTD_MAGIC: Final = struct.pack("<I", 0xFD2FB528)
SINGLE_SEGMENT, ZSTD_SUM, ZSTD_SIZE_8 = 0x20, 0x04, 0xC0
RAW, RUN = 0, 1

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"


# --- checksums of LZ4 and zstd --------------------------------------------------------------------


def _rotated(value: int, by: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return (value << by | value >> (bits - by)) & ((1 << bits) - 1)


def xxh32(data: bytes) -> int:
    """The checksum of LZ4's frames, with seed 0."""
    p1, p2, p3, p4, p5 = PRIMES32
    at = 0
    if len(data) >= 16:
        lanes = [p1 + p2 & MASK32, p2, 0, -p1 & MASK32]
        while at + 16 <= len(data):
            for lane, word in enumerate(struct.unpack_from("<4I", data, at)):
                lanes[lane] = _rotated(lanes[lane] + word * p2, 13, 32) * p1 & MASK32
            at += 16
        found = sum(_rotated(lane, by, 32) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        found = p5
    found += len(data)
    while at + 4 <= len(data):
        found = _rotated(found + struct.unpack_from("<I", data, at)[0] * p3, 17, 32) * p4
        at += 4
    for byte in data[at:]:
        found = _rotated(found + byte * p5, 11, 32) * p1
    found &= MASK32
    found = (found ^ found >> 15) * p2 & MASK32
    found = (found ^ found >> 13) * p3 & MASK32
    return found ^ found >> 16


def xxh64(data: bytes) -> int:
    """The checksum of zstd's frames, with seed 0; of which they have the lower half."""
    p1, p2, p3, p4, p5 = PRIMES64

    def mixed(lane: int, word: int) -> int:
        return _rotated(lane + word * p2, 31, 64) * p1 & MASK64

    at = 0
    if len(data) >= 32:
        lanes = [p1 + p2 & MASK64, p2, 0, -p1 & MASK64]
        while at + 32 <= len(data):
            for lane, word in enumerate(struct.unpack_from("<4Q", data, at)):
                lanes[lane] = mixed(lanes[lane], word)
            at += 32
        found = sum(_rotated(lane, by, 64) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            found = (found ^ mixed(0, lane)) * p1 + p4 & MASK64
    else:
        found = p5
    found += len(data)
    while at + 8 <= len(data):
        found = _rotated(found ^ mixed(0, struct.unpack_from("<Q", data, at)[0]), 27, 64) * p1 + p4
        at += 8
    if at + 4 <= len(data):
        found = _rotated(found ^ struct.unpack_from("<I", data, at)[0] * p1, 23, 64) * p2 + p3
        at += 4
    for byte in data[at:]:
        found = _rotated(found ^ byte * p5, 11, 64) * p1
    found &= MASK64
    found = (found ^ found >> 33) * p2 & MASK64
    found = (found ^ found >> 29) * p3 & MASK64
    return found ^ found >> 32


# --- LZ4 ------------------------------------------------------------------------------------------


def lz4_frame(
    data: bytes,
    flags: int = VERSION_1 | INDEPENDENT,
    block_descriptor: int = BLOCKS_OF_64_KB,
    *,
    block_bytes: int = 1 << 16,
    stored: bool = False,
    end: bytes = LZ4_END,
    size: int | None = None,
    header_error: int = 0,
    block_error: int = 0,
    content_error: int = 0,
) -> bytes:
    """A frame as `flags` say; the errors are added to the checksums."""
    descriptor = bytes((flags, block_descriptor))
    if flags & SIZE:
        descriptor += struct.pack("<Q", len(data) if size is None else size)
    if flags & DICTIONARY:
        descriptor += struct.pack("<I", 7)
    parts = [LZ4_MAGIC, descriptor, bytes([(xxh32(descriptor) >> 8) + header_error & 0xFF])]
    for start in range(0, len(data), block_bytes):
        block = data[start : start + block_bytes]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        is_stored = stored or len(packed) >= len(block)
        packed = block if is_stored else packed
        parts += (struct.pack("<I", len(packed) | (0x80000000 if is_stored else 0)), packed)
        if flags & BLOCK_SUMS:
            parts.append(struct.pack("<I", xxh32(packed) + block_error & MASK32))
    parts.append(end)
    if flags & SUM and end:
        parts.append(struct.pack("<I", xxh32(data) + content_error & MASK32))
    return b"".join(parts)


def linked_lz4(data: bytes) -> bytes:
    """Blocks that refer to the ones before them, as no writer of Kafka's makes them."""
    made = cramjam.lz4.Compressor(content_checksum=False, block_linked=True)
    made.compress(data)
    return bytes(made.finish())


def lz4_frames(data: bytes) -> Iterator[tuple[str, bytes]]:
    usual = VERSION_1 | INDEPENDENT
    good = lz4_frame(data)
    half = len(data) // 2
    yield "independent blocks", good
    yield "linked blocks", linked_lz4(data)
    yield "linked, and one block only", lz4_frame(data, VERSION_1, 0x70, block_bytes=4 << 20)
    yield "stored blocks", lz4_frame(data, stored=True)
    for label, descriptor, size in (
        ("blocks of 64 KB in a frame for 4 MB", 0x70, 1 << 16),
        ("a block of 4 MB", 0x70, 4 << 20),
        ("a block of 256 KB", 0x50, 1 << 18),
        ("a block larger than it may be", 0x40, 1 << 18),
        ("blocks of a size that is not defined", 0x30, 1 << 16),
        ("reserved bits of the descriptor", 0x41, 1 << 16),
        ("the highest bit of the descriptor", 0xC0, 1 << 16),
    ):
        yield label, lz4_frame(data, block_descriptor=descriptor, block_bytes=size)
    yield "checksums of blocks", lz4_frame(data, usual | BLOCK_SUMS)
    yield "a wrong checksum of a block", lz4_frame(data, usual | BLOCK_SUMS, block_error=1)
    yield "checksum of the content", lz4_frame(data, usual | SUM)
    yield "a wrong checksum of the content", lz4_frame(data, usual | SUM, content_error=1)
    yield "content checksum cut off", lz4_frame(data, usual | SUM)[:-4]
    yield "size of the content", lz4_frame(data, usual | SIZE)
    yield "a wrong size of the content", lz4_frame(data, usual | SIZE, size=len(data) + 1)
    yield "a dictionary", lz4_frame(data, usual | DICTIONARY)
    yield "a reserved flag", lz4_frame(data, usual | RESERVED)
    yield "version 0", lz4_frame(data, INDEPENDENT)
    yield "version 2", lz4_frame(data, 0x80 | INDEPENDENT)
    yield "a wrong checksum of the header", lz4_frame(data, header_error=1)
    yield "no end mark", lz4_frame(data, end=b"")
    yield "cut off", good[: len(good) // 2]
    yield "two frames", lz4_frame(data[:half]) + lz4_frame(data[half:])
    yield "all of it, and an empty frame", good + lz4_frame(b"")
    yield "a skippable frame, then the records", SKIPPABLE + good
    yield "the records, then a skippable frame", good + SKIPPABLE
    yield "something behind", good + b"more"
    yield "nothing at all", b""
    yield "an empty frame", lz4_frame(b"")


# --- gzip -----------------------------------------------------------------------------------------


def gzip_member(
    data: bytes, flags: int = 0, extra: bytes = b"", trailer: bytes | None = None
) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = packer.compress(data) + packer.flush()
    end = struct.pack("<II", zlib.crc32(data), len(data) & MASK32) if trailer is None else trailer
    return b"\x1f\x8b\x08" + bytes([flags]) + bytes(5) + b"\xff" + extra + body + end


def gzip_frames(data: bytes) -> Iterator[tuple[str, bytes]]:
    good = gzip_member(data)
    half = len(data) // 2
    crc, size = zlib.crc32(data), len(data)
    head = b"\x1f\x8b\x08\x02" + bytes(5) + b"\xff"
    yield "one member", gzip.compress(data)
    yield "stored", gzip.compress(data, 0)
    yield "two members", gzip_member(data[:half]) + gzip_member(data[half:])
    yield "all of it, and an empty member", good + gzip_member(b"")
    yield "a name", gzip_member(data, 0x08, b"name\0")
    yield "an extra field", gzip_member(data, 0x04, struct.pack("<H", 4) + b"abcd")
    yield "a comment", gzip_member(data, 0x10, b"comment\0")
    yield (
        "a checksum of the header",
        gzip_member(data, 0x02, struct.pack("<H", zlib.crc32(head) & 0xFFFF)),
    )
    yield (
        "a wrong checksum of the header",
        gzip_member(data, 0x02, struct.pack("<H", zlib.crc32(head) + 1 & 0xFFFF)),
    )
    yield "reserved flags", gzip_member(data, 0xE0)
    yield "a wrong checksum", gzip_member(data, trailer=struct.pack("<II", crc ^ 1, size))
    yield "a wrong size", gzip_member(data, trailer=struct.pack("<II", crc, size + 1))
    yield "no trailer", gzip_member(data, trailer=b"")
    yield "half a trailer", gzip_member(data, trailer=struct.pack("<I", crc))
    yield "cut off", good[: len(good) // 2]
    yield "a byte behind", good + b"\0"
    yield "something behind", good + b"more than a header would take"
    yield "zeros behind", good + bytes(30)
    yield "zlib's own format", zlib.compress(data)
    yield "deflate alone", good[10:-8]
    yield "nothing at all", b""
    yield "an empty member", gzip_member(b"")


# --- snappy ---------------------------------------------------------------------------------------


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(
    data: bytes, version: int = 1, compatible: int = 1, *, block_bytes: int = 1 << 15
) -> bytes:
    parts = [XERIAL_MAGIC, struct.pack(">ii", version, compatible)]
    for start in range(0, len(data), block_bytes):
        block = raw_snappy(data[start : start + block_bytes])
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def snappy_frames(data: bytes) -> Iterator[tuple[str, bytes]]:
    good = xerial(data)
    half = len(data) // 2
    yield "blocks of 32 KB", good
    yield "one block", xerial(data, block_bytes=len(data))
    yield "raw", raw_snappy(data)
    yield "raw, and something behind", raw_snappy(data) + b"more"
    yield "snappy's own frames", bytes(cramjam.snappy.compress(data))
    yield "version 2, readable by 1", xerial(data, 2, 1)
    yield "version 2, readable by 2", xerial(data, 2, 2)
    yield "version 0, readable by 0", xerial(data, 0, 0)
    yield "version -1, readable by -1", xerial(data, -1, -1)
    yield "two streams", xerial(data[:half]) + xerial(data[half:])
    yield "an empty block at the end", good + struct.pack(">i", 1) + raw_snappy(b"")
    yield "a block of no bytes at the end", good + bytes(4)
    yield "a block of negative length", good + struct.pack(">i", -1)
    yield "cut off in a block", good[:-3]
    yield "cut off in a length", good + b"\0\0"
    yield "something behind", good + b"more than that"
    yield "cut off in the header", good[:12]
    yield "a header and no block", good[:16]
    yield "nothing at all", b""
    yield "a length that lies", b"\xff\xff\xff\x7f" + raw_snappy(data)[3:]


# --- zstd -----------------------------------------------------------------------------------------


def zstd_frame(
    data: bytes,
    *,
    window_log: int | None = 17,
    with_size: bool = False,
    size: int | None = None,
    checksum: bool = False,
    checksum_error: int = 0,
    dictionary: int | None = None,
    reserved: int = 0,
    end: bool = True,
) -> bytes:
    """A frame of stored blocks; without `window_log` it is one segment that tells its size."""
    with_size = with_size or window_log is None
    descriptor = reserved | (ZSTD_SUM if checksum else 0) | (ZSTD_SIZE_8 if with_size else 0)
    descriptor |= (SINGLE_SEGMENT if window_log is None else 0) | (1 if dictionary else 0)
    parts = [ZSTD_MAGIC, bytes([descriptor])]
    if window_log is not None:
        parts.append(bytes([(window_log - 10) << 3]))
    if dictionary:
        parts.append(bytes([dictionary]))
    if with_size:
        parts.append(struct.pack("<Q", len(data) if size is None else size))
    blocks = [data[start : start + (1 << 16)] for start in range(0, len(data), 1 << 16)] or [b""]
    for number, block in enumerate(blocks):
        is_last = end and number == len(blocks) - 1
        parts += (zstd_block(RAW, len(block), is_last), block)
    if checksum:
        parts.append(struct.pack("<I", xxh64(data) + checksum_error & MASK32))
    return b"".join(parts)


def zstd_block(kind: int, size: int, is_last: bool) -> bytes:
    return struct.pack("<I", size << 3 | kind << 1 | is_last)[:3]


def zstd_frames(data: bytes) -> Iterator[tuple[str, bytes]]:
    good = bytes(cramjam.zstd.compress(data, level=3))
    half = len(data) // 2
    yield "level 3", good
    yield "stored blocks", zstd_frame(data)
    yield "stored blocks in a single segment", zstd_frame(data, window_log=None)
    yield "size of the content", zstd_frame(data, with_size=True)
    yield "a size that is too large", zstd_frame(data, with_size=True, size=len(data) + 1)
    yield "a size that is too small", zstd_frame(data, with_size=True, size=len(data) - 1)
    yield "a checksum", zstd_frame(data, checksum=True)
    yield "a wrong checksum", zstd_frame(data, checksum=True, checksum_error=1)
    yield "a dictionary", zstd_frame(data, dictionary=7)
    yield "the reserved flag", zstd_frame(data, reserved=0x08)
    yield "the unused flag", zstd_frame(data, reserved=0x10)
    for window_log in (10, 23, 27, 28, 31):
        yield f"a window of 2^{window_log}", zstd_frame(data, window_log=window_log)
    yield "two frames", zstd_frame(data[:half]) + zstd_frame(data[half:])
    yield "all of it, and an empty frame", good + zstd_frame(b"")
    yield "a skippable frame, then the records", SKIPPABLE + good
    yield "the records, then a skippable frame", good + SKIPPABLE
    yield "no last block", zstd_frame(data, end=False)
    yield "checksum cut off", zstd_frame(data, checksum=True)[:-2]
    yield "cut off", good[: len(good) // 2]
    yield "something behind", good + b"more"
    yield "a byte behind", good + b"\0"
    yield "nothing at all", b""
    yield "an empty frame", zstd_frame(b"")


FRAMES: Final[dict[int, Callable[[bytes], Iterator[tuple[str, bytes]]]]] = {
    1: gzip_frames,
    2: snappy_frames,
    3: lz4_frames,
    4: zstd_frames,
}
"""By the number that a batch's attributes have for the codec."""

UNREAD_HERE: Final = (
    "GZIP, reserved flags",
    "GZIP, a byte behind",
    "GZIP, something behind",
    "GZIP, zeros behind",
    "SNAPPY, cut off in a length",
    "LZ4, a wrong checksum of the content",
    "LZ4, a wrong size of the content",
    "LZ4, all of it, and an empty frame",
    "LZ4, the records, then a skippable frame",
    "LZ4, something behind",
)
"""What Apache Kafka takes, and no library writes: a wrong checksum, or bytes that nobody reads."""
