"""How fast records become columns and columns records, against aiokafka's C and kafka-python.

Run `python bench/records.py`. All three get the same records. Rounds are interleaved, so that a
busy machine slows all alike; printed are the median of the rounds' ratios and their spread. For the
others decoding is to iterate and read key, value, timestamp and offset; encoding is to append each
record and build. Ours is columns in, batches out, checksums included; "from bytes" adds splitting
the fetched range and verifying every checksum, which the others leave out here. Raw numbers go to
bench/results/records.json.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from kafka.record import MemoryRecords as PyRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

from onceflow.records.batch import StoredBatch, iter_stored
from onceflow.records.columns import RECORD_SCHEMA, decode, encode_all

ROUNDS = 7
FETCH_BYTES = 1024 * 1024
CASES = [(value, batch) for value in (100, 1024) for batch in (16_384, 65_536, 1_048_576)]
START_MS = 1_700_000_000_000

Row = tuple[bytes, bytes, int]


@dataclass(frozen=True, slots=True)
class Result:
    """Nanoseconds per record, one number per round, of one way to do one thing."""

    case: str
    what: str
    who: str
    nanoseconds: list[float]


def make_rows(value_bytes: int, batch_bytes: int) -> list[list[Row]]:
    """Rows for a fetch of about a megabyte, batch by batch."""
    random = Random(value_bytes * batch_bytes)
    per_batch = max(1, batch_bytes // (value_bytes + 22))
    batches = max(1, FETCH_BYTES // batch_bytes)
    return [
        [
            (random.randbytes(random.randint(8, 16)), random.randbytes(value_bytes), START_MS + row)
            for row in range(per_batch)
        ]
        for _ in range(batches)
    ]


def to_columns(rows: list[Row]) -> pa.RecordBatch:
    keys, values, timestamps = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array(timestamps, RECORD_SCHEMA.field("timestamp").type),
        }
    )


def encode_with(builder: Any, batches: list[list[Row]], size: int) -> None:
    for rows in batches:
        batch = builder(2, 0, 0, -1, -1, -1, 2 * size)
        for index, (key, value, timestamp) in enumerate(rows):
            batch.append(index, timestamp, key, value, [])
        batch.build()


def decode_with(reader: Any, data: bytes) -> None:
    records = reader(data)
    while (batch := records.next_batch()) is not None:
        for record in batch:
            _ = (record.key, record.value, record.timestamp, record.offset)


def stored(columns: list[pa.RecordBatch]) -> list[StoredBatch]:
    offset = 0
    batches = []
    for batch in (encode_all(column, max_batch_bytes=2**30)[0] for column in columns):
        batches.append(batch.assign(offset, 0))
        offset += batch.header.record_count
    return batches


def ways(
    value_bytes: int, batch_bytes: int
) -> tuple[int, dict[tuple[str, str], Callable[[], object]]]:
    """The number of records and every way to handle them."""
    rows = make_rows(value_bytes, batch_bytes)
    everything = to_columns([row for batch in rows for row in batch])
    data = b"".join(batch.buffer for batch in stored([to_columns(batch) for batch in rows]))
    batches = list(iter_stored(data))
    size = max(batch.header.size for batch in batches)
    return everything.num_rows, {
        ("decode", "onceflow"): lambda: decode(batches),
        ("decode", "onceflow from bytes"): lambda: decode(list(iter_stored(data))),
        ("decode", "aiokafka"): lambda: decode_with(AioRecords, data),
        ("decode", "kafka-python"): lambda: decode_with(PyRecords, data),
        ("encode", "onceflow"): lambda: encode_all(everything, max_batch_bytes=size),
        ("encode", "aiokafka"): lambda: encode_with(AioBuilder, rows, size),
        ("encode", "kafka-python"): lambda: encode_with(PyBuilder, rows, size),
    }


def measure(
    case: str, records: int, ways: dict[tuple[str, str], Callable[[], object]]
) -> list[Result]:
    samples: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    for function in ways.values():
        function()
    for _ in range(ROUNDS):
        for way, function in ways.items():
            # Each sample long enough to time well; Python's readers are slow enough at once.
            repeats = 20 if way[1].startswith("onceflow") else 1
            start = time.perf_counter_ns()
            for _ in range(repeats):
                function()
            samples[way].append((time.perf_counter_ns() - start) / repeats / records)
    return [Result(case, what, who, numbers) for (what, who), numbers in samples.items()]


def report(results: list[Result]) -> None:
    others = [result for result in results if not result.who.startswith("onceflow")]
    for ours in (result for result in results if result.who.startswith("onceflow")):
        parts = [f"{statistics.median(ours.nanoseconds):6.1f} ns/record"]
        for other in others:
            if other.what == ours.what:
                ratios = [b / a for a, b in zip(ours.nanoseconds, other.nanoseconds, strict=True)]
                low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
                parts.append(f"{middle:6.1f}x {other.who} ({low:.1f}-{high:.1f})")
        print(f"{ours.case}  {ours.what:6}  {ours.who:20} " + "   ".join(parts))


def main() -> None:
    if "_crecords" not in AioBuilder.__module__ or "_crecords" not in AioRecords.__module__:
        raise SystemExit("aiokafka runs without its C extension: the comparison would flatter us")
    results: list[Result] = []
    for value_bytes, batch_bytes in CASES:
        case = f"{value_bytes:4} B values, {batch_bytes // 1024:4} KiB batches"
        measured = measure(case, *ways(value_bytes, batch_bytes))
        report(measured)
        results += measured
    target = Path(__file__).parent / "results" / "records.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
