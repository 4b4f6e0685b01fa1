"""Which compressed batches a broker takes. What Apache Kafka refuses cannot be read by its consumer
either: here nothing may be taken that it refuses."""

from __future__ import annotations

import random
import struct

import pytest

from onceflow.client.consumer.fetched import columns_of
from onceflow.records.batch import Codec, iter_stored
from onceflow.types import TopicPartition
from tests.interop.broker.raw.compressed_frames import FRAMES, UNREAD_HERE, xxh32, xxh64
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import batch, create_topic, fetch, produce, with_crc
from tests.interop.harness import Compare, Names, Transcript

pytestmark = pytest.mark.interop

HEADER_SIZE = 61


def values() -> list[bytes]:
    """More than a block of any codec, and not too easy to compress."""
    dice = random.Random(7)
    return [b" ".join(b"%d" % dice.randrange(1000) for _ in range(50_000)), b"second", b"x" * 1000]


def packed(plain: bytes, codec: int, section: bytes) -> bytes:
    """The batch with another records section, and a header that fits it."""
    data = plain[:8] + struct.pack(">i", HEADER_SIZE - 12 + len(section)) + plain[12:HEADER_SIZE]
    return with_crc(data[:21] + struct.pack(">h", codec) + data[23:] + section)


def takes_frames(bootstrap: str, names: Names, transcript: Transcript) -> None:
    plain = batch(*values())
    for codec, frames in FRAMES.items():
        topic = names(Codec(codec).name.lower())
        with RawConnection(bootstrap) as connection:
            create_topic(connection, topic)
            for name, section in frames(plain[HEADER_SIZE:]):
                label = f"{Codec(codec).name}, {name}"
                answer = produce(connection, topic, packed(plain, codec, section))
                is_taken = answer["error_code"] == "NONE"
                transcript.note(label, "taken" if is_taken else "refused")
                if is_taken and label not in UNREAD_HERE:
                    check_readable(connection, topic, answer["base_offset"])


def check_readable(connection: RawConnection, topic: str, offset: int) -> None:
    """By our own reader, wherever it comes from."""
    records = fetch(connection, topic, offset)["records"]
    first = next(iter(iter_stored(records)))
    rows = columns_of(TopicPartition(topic, 0), [first], offset)
    assert rows.column("value").to_pylist() == values()


def test_takes_frames(compare: Compare) -> None:
    compare(takes_frames)


def test_checksums_of_frames() -> None:
    assert (xxh32(b""), xxh32(b"abc")) == (0x02CC5D05, 0x32D153FF)
    assert (xxh64(b""), xxh64(b"abc")) == (0xEF46DB3751D8E999, 0x44BC2CF5AD770999)
