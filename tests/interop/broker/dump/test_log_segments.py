"""Apache Kafka's own dump tool reads the files that we write, and finds nothing wrong with them."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from onceflow.log.config import LogConfig
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.arrow import HEADERS
from onceflow.records.batch import Codec, NewBatch
from onceflow.records.columns import encode
from onceflow.records.control import marker
from onceflow.runtime.background import Inline
from onceflow.runtime.disk import RealDisk
from onceflow.runtime.rand import RealRand
from onceflow.types import LogId
from tests.interop.broker.dump.dump_tool import dump

pytestmark = pytest.mark.interop

START_MS = 1_700_000_000_000
ROWS = 40
BATCHES = 60


def make_batch(number: int) -> NewBatch:
    """Rows with nulls, headers and every codec in turn, as part of a transaction."""
    rows = range(number * ROWS, number * ROWS + ROWS)
    headers = [{"key": "trace", "value": b"x"}, {"key": "none", "value": None}]
    columns = pa.record_batch(
        {
            "key": pa.array([None if row % 7 == 0 else b"k%d" % row for row in rows], pa.binary()),
            "value": pa.array([None if row % 5 == 0 else b"v%d" % row * 20 for row in rows]),
            "headers": pa.array([headers if row % 3 else [] for row in rows], HEADERS),
            "timestamp": pa.array([START_MS + row for row in rows], pa.timestamp("ms", "UTC")),
        }
    )
    return encode(
        columns,
        codec=Codec(number % len(Codec)),
        producer_id=7,
        producer_epoch=0,
        base_sequence=number * ROWS,
        transactional=True,
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The directory of a partition with several segments, after a clean stop."""
    config = StoreConfig(log=LogConfig(segment_bytes=30_000, index_interval_bytes=2000))
    store = LogStore.open(RealDisk(tmp_path), Inline(), RealRand(), config)
    log_id = LogId(UUID(int=5), 0)
    store.create("dumped", [log_id])
    log = store.logs[log_id]
    for number in range(BATCHES):
        append(store, log, make_batch(number))
        if number % 10 == 9:
            end = START_MS + number * ROWS + ROWS
            done = marker(7, 0, commit=number % 20 == 9, coordinator_epoch=3, timestamp_ms=end)
            append(store, log, done)
    store.close()
    assert len(log.segments) > 2
    return tmp_path / log.directory


def append(store: LogStore, log: PartitionLog, batch: NewBatch) -> None:
    assert store.append(log, batch.assign(log.end_offset, 0)).done


def test_the_dump_tool_reads_every_record_of_our_segments(kafka_jars: Path, written: Path) -> None:
    text = dump(kafka_jars, sorted(written.glob("*.log")), "--deep-iteration", "--print-data-log")
    offsets = [int(found) for found in re.findall(r"\| offset: (\d+)", text)]
    assert offsets == list(range(BATCHES * ROWS + BATCHES // 10))
    assert text.count("isvalid: true") == BATCHES + BATCHES // 10
    assert "isvalid: false" not in text
    assert text.count("endTxnMarker: COMMIT") == text.count("endTxnMarker: ABORT") == 3
    assert {"GZIP", "SNAPPY", "LZ4", "ZSTD", "NONE"} == {
        found.upper() for found in re.findall(r"compresscodec: (\w+)", text)
    }
    assert "payload: v11v11" in text


def test_the_dump_tool_finds_our_indexes_in_order(kafka_jars: Path, written: Path) -> None:
    indexes = sorted([*written.glob("*.index"), *written.glob("*.timeindex")])
    text = dump(kafka_jars, indexes)
    assert len(re.findall(r"^offset: \d+ position: \d+$", text, re.MULTILINE)) > 10
    assert len(re.findall(r"^timestamp: \d+ offset: \d+$", text, re.MULTILINE)) > 10
    for complaint in ("Mismatch", "not found", "out of order", "Invalid", "Found"):
        assert complaint not in text, text
