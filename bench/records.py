"""How fast records become columns and columns records, against aiokafka and kafka-python.

Run `python -m bench.records`. All get the same records. Rounds are interleaved, so that a busy
machine slows all alike; printed are the median of the rounds' ratios and their spread. Each name
says whether checksums are part of the work.

Who is who: the consumer's record code is what aiokafka's consumer runs from fetched bytes to
`ConsumerRecord`s, the producer's record code what its producer runs; underneath are its bare C
reader and C builder. For these two and for kafka-python decoding is to iterate and read key, value,
timestamp and offset; encoding is to append each record and build. "onceflow" decodes fetched bytes
to a `RecordBatch` and encodes columns to whole batches; "onceflow parsed" decodes batches that have
been split and checked before. Raw numbers go to bench/results/records.json.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
from aiokafka.consumer.fetcher import READ_UNCOMMITTED, PartitionRecords
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from aiokafka.structs import TopicPartition
from kafka.record import MemoryRecords as PyRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder
from kafka.record.util import crc32c_c

from onceflow.records.batch import StoredBatch, iter_stored
from onceflow.records.columns import RECORD_SCHEMA, decode, encode_all
from onceflow.runtime.compiling.compiling import at_import

ROUNDS = 11
FETCH_BYTES = 1024 * 1024
CASES = [(value, batch) for value in (100, 1024) for batch in (16_384, 65_536, 1_048_576)]
START_MS = 1_700_000_000_000
PARTITION = TopicPartition("records", 0)
CONSUMER = "aiokafka consumer's record code"
PRODUCER = "aiokafka producer's record code"
GOALS = {"decode": (CONSUMER, 30), "encode": (PRODUCER, 20)}
GOAL_CASES = [(100, 65_536), (100, 1_048_576)]

Row = tuple[bytes, bytes, int]


class Way(NamedTuple):
    """One way to do one thing; `checked` says whether it sums up checksums."""

    what: str
    who: str
    checked: bool
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Result:
    """Nanoseconds per record, one number per round, of one way to do one thing."""

    case: str
    what: str
    who: str
    checked: bool
    nanoseconds: list[float]


def case_name(value_bytes: int, batch_bytes: int) -> str:
    return f"{value_bytes:4} B values, {batch_bytes // 1024:4} KiB batches"


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


def encode_as_producer(batches: list[list[Row]], size: int) -> None:
    for rows in batches:
        batch = BatchBuilder(2 * size, 0)
        for key, value, timestamp in rows:
            batch.append(timestamp=timestamp, key=key, value=value)
        batch._build()


def decode_as_consumer(data: bytes) -> None:
    records = AioRecords(data)
    for _ in PartitionRecords(PARTITION, records, [], 0, None, None, True, READ_UNCOMMITTED):
        pass


def stored(columns: list[pa.RecordBatch]) -> list[StoredBatch]:
    offset = 0
    batches = []
    for batch in (encode_all(column, max_batch_bytes=2**30)[0] for column in columns):
        batches.append(batch.assign(offset, 0))
        offset += batch.header.record_count
    return batches


def ways(value_bytes: int, batch_bytes: int) -> tuple[int, list[Way]]:
    """The number of records and every way to handle them."""
    rows = make_rows(value_bytes, batch_bytes)
    everything = to_columns([row for batch in rows for row in batch])
    data = b"".join(batch.buffer for batch in stored([to_columns(batch) for batch in rows]))
    parsed = list(iter_stored(data))
    size = max(batch.header.size for batch in parsed)
    return everything.num_rows, [
        Way("decode", "onceflow", True, lambda: decode(list(iter_stored(data)))),
        Way("decode", "onceflow parsed", False, lambda: decode(parsed)),
        Way("decode", CONSUMER, True, lambda: decode_as_consumer(data)),
        Way("decode", "aiokafka's bare C reader", False, lambda: decode_with(AioRecords, data)),
        Way("decode", "kafka-python", False, lambda: decode_with(PyRecords, data)),
        Way("encode", "onceflow", True, lambda: encode_all(everything, max_batch_bytes=size)),
        Way("encode", PRODUCER, True, lambda: encode_as_producer(rows, size)),
        Way(
            "encode", "aiokafka's bare C builder", True, lambda: encode_with(AioBuilder, rows, size)
        ),
        Way("encode", "kafka-python", True, lambda: encode_with(PyBuilder, rows, size)),
    ]


def measure(case: str, records: int, ways: list[Way]) -> list[Result]:
    results = [Result(case, way.what, way.who, way.checked, []) for way in ways]
    for way in ways:
        way.run()
    for _ in range(ROUNDS):
        for way, result in zip(ways, results, strict=True):
            # Each sample long enough to time well; Python's readers are slow enough at once.
            repeats = 20 if is_ours(result) else 1
            start = time.perf_counter_ns()
            for _ in range(repeats):
                way.run()
            result.nanoseconds.append((time.perf_counter_ns() - start) / repeats / records)
    return results


def is_ours(result: Result) -> bool:
    return result.who.startswith("onceflow")


def label(result: Result) -> str:
    return f"{result.who} ({'CRC' if result.checked else 'no CRC'})"


def ratio(ours: Result, other: Result) -> str:
    """How many times faster ours is: the median of the rounds, the least and the most."""
    ratios = [b / a for a, b in zip(ours.nanoseconds, other.nanoseconds, strict=True)]
    return f"{statistics.median(ratios):5.1f}x ({min(ratios):.1f}-{max(ratios):.1f})"


def report(results: list[Result]) -> None:
    for ours in filter(is_ours, results):
        print(
            f"{ours.case}  {ours.what}  {label(ours):24} "
            f"{statistics.median(ours.nanoseconds):6.1f} ns/record"
        )
        for other in results:
            if other.what == ours.what and not is_ours(other):
                print(f"    {ratio(ours, other):24} {label(other)}")


def summarize(results: list[Result]) -> None:
    """The lines that there is a goal for."""
    found = {(result.case, result.what, result.who): result for result in results}
    print("\nGoals, with checksums on both sides:")
    for case in (case_name(*case) for case in GOAL_CASES):
        for what, (who, goal) in GOALS.items():
            times = ratio(found[case, what, "onceflow"], found[case, what, who])
            print(f"{case}  {what}  {times:20} {who} (goal {goal}x)")


def main() -> None:
    at_import.set()
    if "_crecords" not in AioBuilder.__module__ or "_crecords" not in AioRecords.__module__:
        raise SystemExit("aiokafka runs without its C extension: the comparison would flatter us")
    if crc32c_c is None:
        raise SystemExit("kafka-python runs without crc32c: the comparison would flatter us")
    results: list[Result] = []
    for value_bytes, batch_bytes in CASES:
        case = case_name(value_bytes, batch_bytes)
        measured = measure(case, *ways(value_bytes, batch_bytes))
        report(measured)
        results += measured
    summarize(results)
    target = Path(__file__).parent / "results" / "records.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
