"""Apache Kafka's own dump tool reads the segments that compaction leaves, tombstones and all."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from onceflow.log.config import LogConfig
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import Codec, NewBatch
from onceflow.records.columns import encode
from onceflow.runtime.background import Inline
from onceflow.runtime.disk import RealDisk
from onceflow.runtime.rand import RealRand
from onceflow.types import LogId
from tools.java import find_java

pytestmark = pytest.mark.interop

START_MS = 1_700_000_000_000
BATCHES = 50
ROWS = 10
KEYS = 37

# What the tool says of a sound compacted log: that there are gaps between offsets, and that a batch
# which only holds the place of a producer's sequence has a timestamp, but no record with it.
EXPECTED = (
    r"^WARNING: .*\n"
    r"|^Non-consecutive offsets in .*\n(?:  .* is followed by .*\n)*"
    r"|^Found timestamp mismatch in .*\n(?:  Index timestamp: \d+, log timestamp: -1\n)+"
)


def make_batch(number: int) -> NewBatch:
    """Keys that come again in later batches, some without a value, in every codec."""
    rows = range(number * ROWS, number * ROWS + ROWS)
    columns = pa.record_batch(
        {
            "key": pa.array([b"k%d" % (row % KEYS) for row in rows]),
            "value": pa.array([None if row % 5 == 0 else b"v%d" % row * 20 for row in rows]),
            "timestamp": pa.array([START_MS + row for row in rows], pa.timestamp("ms", "UTC")),
        }
    )
    return encode(
        columns,
        codec=Codec(number % len(Codec)),
        producer_id=7 + number // (BATCHES // 2),
        producer_epoch=0,
        base_sequence=number * ROWS,
    )


@pytest.fixture
def compacted(tmp_path: Path) -> Path:
    """The files of a partition that was compacted, after a clean stop."""
    settings = LogConfig(compact=True, delete=False, segment_bytes=5000, index_interval_bytes=500)
    store = LogStore.open(RealDisk(tmp_path), Inline(), RealRand(), StoreConfig(log=settings))
    log_id = LogId(UUID(int=5), 0)
    store.create("compacted", [log_id])
    log = store.logs[log_id]
    for number in range(BATCHES):
        assert store.append(log, make_batch(number).assign(log.end_offset, 0)).done
    log.roll()
    store.request_checkpoint()
    before = log.size
    store.compact(START_MS + 10_000)
    assert log.size < before / 3
    store.close()
    return tmp_path / log.directory


def dump(jars: Path, files: list[Path], *options: str) -> str:
    java = find_java()
    assert java is not None
    tool = [str(java), "-cp", f"{jars}/*", "org.apache.kafka.tools.DumpLogSegments"]
    done = subprocess.run(
        [*tool, *options, "--files", ",".join(str(file) for file in files)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rest = re.sub(EXPECTED, "", done.stderr, flags=re.MULTILINE)
    assert not rest.strip(), rest
    return str(done.stdout)


def test_the_dump_tool_reads_what_compaction_leaves(kafka_jars: Path, compacted: Path) -> None:
    text = dump(kafka_jars, sorted(compacted.glob("*.log")), "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in text
    found = re.findall(r"\| offset: (\d+) .*? key: (k\d+)", text)
    latest = {f"k{row % KEYS}": row for row in range(BATCHES * ROWS)}
    assert {key: int(offset) for offset, key in found} == latest
    assert len(found) == KEYS
    tombstones = sum(row % 5 == 0 for row in latest.values())
    assert 0 < tombstones == len(re.findall(r"valueSize: -1 ", text))
    horizons = re.findall(r"deleteHorizonMs: OptionalLong\[(\d+)\]", text)
    assert {int(each) for each in horizons} == {START_MS + 10_000 + 24 * 3600 * 1000}
    timestamps = re.findall(r"\| offset: (\d+) CreateTime: (\d+)", text)
    assert all(int(stamp) == START_MS + int(offset) for offset, stamp in timestamps)
    empty = re.findall(r"baseOffset: (\d+) lastOffset: (\d+) count: 0 .* producerId: (\d+)", text)
    half = BATCHES // 2 * ROWS
    assert empty == [(str(half - ROWS), str(half - 1), "7")]  # the last batch of that producer


def test_the_dump_tool_finds_the_new_indexes_in_order(kafka_jars: Path, compacted: Path) -> None:
    indexes = sorted([*compacted.glob("*.index"), *compacted.glob("*.timeindex")])
    text = dump(kafka_jars, indexes)
    assert re.findall(r"^timestamp: \d+ offset: \d+$", text, re.MULTILINE)
    for complaint in ("Mismatch", "not found", "out of order", "Invalid", "Found"):
        assert complaint not in text, text
