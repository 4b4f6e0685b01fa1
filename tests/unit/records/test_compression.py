"""Codecs: Java's framings, and limits that no header can talk us out of."""

from __future__ import annotations

import struct
import tracemalloc

import cramjam
import pytest

from onceflow.errors import CompressionFailed, DecompressedTooLarge
from onceflow.records.batch import Codec
from onceflow.records.compression import check_portable, compress, decompress
from tests.interop.broker.raw import compressed_frames as frames

PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"the quick brown fox " * 10_000
NOISE = bytes((i * i * 31 + i // 7) % 251 for i in range(200_000))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, b"\0" * 65536, TEXT[:32768]])
def test_round_trip(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed)) == data
    assert bytes(decompress(codec, memoryview(bytearray(packed)), limit=len(data))) == data


@pytest.mark.parametrize("codec", PACKED)
def test_one_byte_over_the_limit(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    with pytest.raises(DecompressedTooLarge, match=codec.name):
        decompress(codec, packed, limit=len(TEXT) - 1)
    with pytest.raises(DecompressedTooLarge):
        decompress(Codec.NONE, TEXT, limit=len(TEXT) - 1)


@pytest.mark.parametrize("codec", PACKED)
def test_every_truncation_fails_by_name(codec: Codec) -> None:
    packed = bytes(compress(codec, NOISE[:300] + b"\0" * 3000))
    for length in range(len(packed)):
        if codec is Codec.SNAPPY and length == 16:
            continue  # a whole stream of no blocks
        with pytest.raises(CompressionFailed):
            decompress(codec, packed[:length])


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("garbage", [b"\0", b"garbage", b"\0" * 20, b"\xff" * 7])
def test_trailing_bytes_fail_by_name(codec: Codec, garbage: bytes) -> None:
    with pytest.raises(CompressionFailed):
        decompress(codec, bytes(compress(codec, TEXT)) + garbage)


def bombs() -> list[tuple[str, Codec, bytes]]:
    """Streams of a few KiB or less that grow to 100 MiB, or say that they do."""
    block = b"\0" * (10 * 1024 * 1024)
    xerial = bytes(compress(Codec.SNAPPY, b"\0" * 32768))
    lying_block = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
    return [
        ("gzip members", Codec.GZIP, bytes(cramjam.gzip.compress(block)) * 10),
        ("zstd frames", Codec.ZSTD, bytes(cramjam.zstd.compress(block)) * 10),
        ("lz4 frames", Codec.LZ4, bytes(compress(Codec.LZ4, block)) * 10),
        ("lz4 linked blocks", Codec.LZ4, bytes(cramjam.lz4.compress(block)) * 10),
        ("snappy blocks", Codec.SNAPPY, xerial[:16] + xerial[16:] * 3200),
        ("snappy raw", Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(block))),
        ("snappy length alone", Codec.SNAPPY, lying_block),
        (
            "snappy length in a block",
            Codec.SNAPPY,
            xerial[:16] + struct.pack(">i", len(lying_block)) + lying_block,
        ),
    ]


@pytest.mark.parametrize(("name", "codec", "data"), bombs(), ids=lambda value: str(value)[:24])
def test_bombs_are_refused_in_bounded_memory(name: str, codec: Codec, data: bytes) -> None:
    limit = 4 * 1024 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, data, limit=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * limit, name


def test_a_content_size_that_lies_is_not_believed() -> None:
    zstd = bytearray(cramjam.zstd.compress(TEXT))
    frame_with_size = bytes.fromhex("28b52ffd") + b"\xe0" + struct.pack("<Q", 2**62) + b"\x01\0\0"
    for lie in (frame_with_size, frame_with_size + bytes(zstd)):
        with pytest.raises((CompressionFailed, DecompressedTooLarge)):
            decompress(Codec.ZSTD, lie, limit=1 << 20)


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1])
def test_xerial_block_lengths_are_checked(length: int) -> None:
    header = bytes(compress(Codec.SNAPPY, b""))
    with pytest.raises(CompressionFailed, match="block"):
        decompress(Codec.SNAPPY, header + struct.pack(">i", length) + b"\x01\x00a")


def test_snappy_is_written_as_snappy_java_does_and_read_bare_too() -> None:
    packed = bytes(compress(Codec.SNAPPY, TEXT[:40_000]))
    assert packed[:16] == bytes.fromhex("82534e41505059000000000100000001")
    (first,) = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == TEXT[:32768]
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)))) == TEXT


def test_lz4_frames_have_independent_blocks_and_a_true_header_checksum() -> None:
    packed = bytes(compress(Codec.LZ4, TEXT))
    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] == 0x60  # version 1, independent blocks, no checksums, no content size
    assert bytes(cramjam.lz4.decompress(packed)) == TEXT
    with pytest.raises(CompressionFailed):
        decompress(Codec.LZ4, packed[:6] + bytes([packed[6] ^ 1]) + packed[7:])


def test_lz4_frames_of_others_are_read() -> None:
    assert bytes(decompress(Codec.LZ4, bytes(cramjam.lz4.compress(TEXT)))) == TEXT


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE])
def test_what_is_written_here_can_be_read_by_all(codec: Codec, data: bytes) -> None:
    check_portable(codec, compress(codec, data))


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (bytes(cramjam.lz4.compress(TEXT)), "linked blocks"),
        (frames.lz4_frame(TEXT, frames.VERSION_1), "linked blocks"),
        (frames.lz4_frame(TEXT, frames.VERSION_1 | 0x20 | frames.DICTIONARY), "dictionary"),
        (frames.lz4_frame(TEXT) + frames.lz4_frame(TEXT), "no further"),
        (frames.lz4_frame(TEXT) + frames.SKIPPABLE, "no further"),
        (frames.SKIPPABLE + frames.lz4_frame(TEXT), "does not begin"),
        (frames.lz4_frame(TEXT, end=b""), "no end"),
        (frames.lz4_frame(TEXT)[:6], "does not begin"),
        (b"", "does not begin"),
    ],
)
def test_lz4_that_java_cannot_read_is_not_for_all(frame: bytes, said: str) -> None:
    with pytest.raises(CompressionFailed, match=said):
        check_portable(Codec.LZ4, frame)


@pytest.mark.parametrize("more", [0, frames.BLOCK_SUMS, frames.SIZE, frames.SUM, 0x1C])
def test_lz4_frames_with_sums_and_sizes_are_for_all(more: int) -> None:
    frame = frames.lz4_frame(TEXT + NOISE, frames.VERSION_1 | frames.INDEPENDENT | more)
    check_portable(Codec.LZ4, frame)
    assert bytes(decompress(Codec.LZ4, frame)) == TEXT + NOISE


def test_snappy_streams_behind_each_other_are_one() -> None:
    packed = frames.xerial(TEXT) + frames.xerial(NOISE) + frames.xerial(b"")
    assert bytes(decompress(Codec.SNAPPY, packed)) == TEXT + NOISE
