"""Records of every kind for clients of all makes, and how they are compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tests.interop.broker.clients.face import Headers, Received

SECONDS: Final = 60.0
PARTITIONS: Final = 5
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS: Final = 1_700_000_000_000


class Sample(NamedTuple):
    """A record to be sent; without a partition where its key belongs."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    partition: int | None


Parts = list[tuple[bool, list[Sample]]]
"""Transactions, and whether they are committed."""
Placed = list[tuple[Sample, int, int]]
"""What was sent and not aborted, with partition and offset."""


def samples(label: str, *, null_headers: bool = True) -> list[Sample]:
    """Records of every kind: null, empty, binary, long; headers that repeat, without values, of
    other alphabets; timestamps that go back."""
    headers: tuple[Headers, ...] = (
        (),
        (("a", b"1"), ("a", b"2"), ("b", None if null_headers else b"")),
        (("", b""), ("naïve ключ", bytes(range(256)))),
    )
    made = []
    for number in range(60):
        text = f"{label} {number}".encode()
        key = (text, None, b"", bytes([number, 255, 0]))[number % 4]
        value = (text, None, b"", bytes(range(256)) * 9, text * 40)[number % 5]
        if key is None and value is None:
            value = text
        partition = number % PARTITIONS if key is None or number % 8 == 0 else None
        stamp = FIRST_MS + 1000 * number - 7000 * (number % 3)
        made.append(Sample(key, value, headers[number % 3], stamp, partition))
    return made


def transactions(label: str, *, null_headers: bool = True) -> Parts:
    """Each second one is aborted; the last one has a record for each partition, so that a reader
    that shows too much has done so before it has enough."""
    made = [
        (number % 2 == 0, samples(f"{label} {number}", null_headers=null_headers))
        for number in range(4)
    ]
    end = [Sample(b"end", b"end", (), FIRST_MS, number) for number in range(PARTITIONS)]
    return [*made, (True, end)]


def facts(record: Sample | Received) -> tuple[Any, ...]:
    return record.key, record.value, record.headers, record.timestamp_ms


def content(found: Iterable[Received]) -> dict[int, list[Any]]:
    """Records by partition, in order; offsets are left out."""
    by_partition: dict[int, list[Any]] = {}
    for each in sorted(found, key=lambda record: (record.partition, record.offset)):
        by_partition.setdefault(each.partition, []).append(facts(each))
    return by_partition


def as_received(placed: Placed) -> list[Received]:
    """As a reader must see it."""
    found = [
        Received(partition, offset, each.key, each.value, each.headers, each.timestamp_ms)
        for each, partition, offset in placed
    ]
    return sorted(found, key=lambda record: (record.partition, record.offset))
