"""What the golden bytes in `data/` hold: the cases every foreign writer wrote, as pure data.

`make_golden.py` hands these records to each writer; `test_golden.py` demands them back. Every
record carries its own timestamp, so that what comes out is known to the last field. A record that
a writer cannot express is left out for that writer alone, by `can_write`. Every case repeats
itself enough to shrink: most clients leave a batch uncompressed that compression would not shorten.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

DATA: Final = Path(__file__).with_name("data")
INDEX: Final = DATA / "index.json"
BASE_TIMESTAMP: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000


class Writer(Enum):
    CONFLUENT = "confluent-kafka"
    AIOKAFKA = "aiokafka"
    KAFKA_PYTHON = "kafka-python"
    JAVA = "java"


class Codec(Enum):
    """Values are the codec's number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Header(NamedTuple):
    key: str
    value: bytes | None


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...] = ()


class Mode(Enum):
    PLAIN = "no producer id"
    IDEMPOTENT = "producer id, epoch and sequence"
    TRANSACTIONAL = "one committed transaction, then one aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    records: tuple[Record, ...]
    aborted: tuple[Record, ...] = ()
    mode: Mode = Mode.PLAIN
    codecs: tuple[Codec, ...] = tuple(Codec)


class Cell(NamedTuple):
    """One golden segment: what one writer made of one case with one codec."""

    writer: Writer
    codec: Codec
    case: Case

    @property
    def name(self) -> str:
        return f"{self.writer.value}.{self.codec.name.lower()}.{self.case.name}"

    @property
    def records(self) -> list[Record]:
        return [record for record in self.case.records if can_write(self.writer, record)]


def can_write(writer: Writer, record: Record) -> bool:
    """False where the writer has no way to say this record."""
    if writer is Writer.JAVA:
        return True
    if writer is Writer.CONFLUENT:
        # librdkafka takes timestamp 0 for "now".
        return record.timestamp != 0
    # Both Python clients refuse a record that has neither key nor value; kafka-python also
    # refuses header values that are not bytes.
    return (record.key is not None or record.value is not None) and (
        writer is Writer.AIOKAFKA or all(header.value is not None for header in record.headers)
    )


def _in_order(
    *contents: tuple[bytes | None, bytes | None, tuple[Header, ...]],
) -> tuple[Record, ...]:
    return tuple(
        Record(key, value, BASE_TIMESTAMP + i, headers)
        for i, (key, value, headers) in enumerate(contents)
    )


def _small(label: str, count: int) -> tuple[Record, ...]:
    """Small records that repeat themselves enough for every codec to shrink them."""
    return _in_order(
        *((f"{label}-{i}".encode(), f"{label} value {i}; ".encode() * 16, ()) for i in range(count))
    )


def _ten_thousand() -> tuple[Record, ...]:
    text = b"to be written once, to be read once, and never to be lost on the way; " * 3
    return _in_order(
        *(
            (
                None if i % 7 == 0 else b"key-%d" % (i % 1000),
                None if i % 98 == 1 else text[i * 31 % 70 :][: i * 37 % 83],
                (Header("i", b"%d" % i),) if i % 50 == 0 else (),
            )
            for i in range(10_000)
        )
    )


CASES: Final = (
    Case(name="plain", records=_small("plain", 3)),
    Case(name="one", records=_small("one", 1)),
    Case(
        name="nulls",
        records=_in_order(
            (None, b"null key; " * 16, ()),
            (b"null value", None, ()),
            (b"", b"empty key", ()),
            (b"empty value", b"", ()),
            (b"", None, ()),
            (None, b"", ()),
            (b"", b"", ()),
            (None, None, ()),
        ),
    ),
    Case(
        name="headers",
        records=_in_order(
            (b"none", b"v", ()),
            (b"one", b"v", (Header("trace", b"\x00\xff"),)),
            (b"several", b"v", (Header("a", b"1"), Header("b", b"2"), Header("c", b"3"))),
            (b"repeated", b"v", (Header("a", b"1"), Header("b", b"2"), Header("a", b"3"))),
            (b"empty", b"v", (Header("", b"empty name"), Header("a", b""))),
            (b"null", b"v", (Header("a", None), Header("a", b""), Header("b", None))),
            (b"many", b"v", tuple(Header("n", b"%d" % i) for i in range(200))),
        ),
    ),
    Case(
        name="unicode",
        records=_in_order(
            ("clé".encode(), "naïve façade; ".encode() * 16, (Header("en-tête", "é".encode()),)),
            ("ключ".encode(), "значение; ".encode() * 16, (Header("заголовок", "да".encode()),)),
            ("鍵".encode(), "値".encode(), (Header("見出し", "はい".encode()),)),
            ("🔑".encode(), "🚀🚀".encode(), (Header("🏷", "🎉".encode()),)),
        ),
    ),
    Case(
        name="timestamps",
        records=tuple(
            Record(b"k%d" % i, b"v%d; " % i * 16, timestamp)
            for i, timestamp in enumerate(
                (
                    BASE_TIMESTAMP,
                    0,
                    BASE_TIMESTAMP + DAY_MS,
                    BASE_TIMESTAMP - DAY_MS,
                    1,
                    BASE_TIMESTAMP + DAY_MS,
                    BASE_TIMESTAMP,
                )
            )
        ),
    ),
    Case(
        name="million",
        records=_in_order((b"million", (bytes(range(251)) * 4000)[:1_000_000], ())),
    ),
    Case(name="tenthousand", records=_ten_thousand()),
    Case(
        name="idempotent",
        records=_small("idempotent", 3),
        mode=Mode.IDEMPOTENT,
        codecs=(Codec.NONE,),
    ),
    Case(
        name="transactional",
        records=_small("committed", 3),
        aborted=_small("aborted", 2),
        mode=Mode.TRANSACTIONAL,
        codecs=(Codec.ZSTD,),
    ),
)

CELLS: Final = tuple(
    Cell(writer, codec, case) for writer in Writer for case in CASES for codec in case.codecs
)


def segment(cell: Cell) -> bytes:
    """The bytes of the segment the broker kept for this cell."""
    start, end = _ranges()[cell.name]
    return _segments(cell.writer)[start:end]


@cache
def _ranges() -> dict[str, tuple[int, int]]:
    """Where each cell's segment starts and ends in its writer's file."""
    ranges: dict[str, tuple[int, int]] = json.loads(INDEX.read_text(encoding="utf-8"))["segments"]
    return ranges


@cache
def _segments(writer: Writer) -> bytes:
    return lzma.decompress((DATA / f"{writer.value}.xz").read_bytes())
