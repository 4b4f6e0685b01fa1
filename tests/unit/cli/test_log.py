"""`onceflow log dump`: whole files, damaged ones, unfinished ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from onceflow.cli import run
from onceflow.cli.log.segment_files import NoSegments, SegmentFile, SegmentWalk, find_segments
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import Codec
from onceflow.records.columns import encode
from onceflow.records.control import marker
from onceflow.runtime.background import Inline
from onceflow.runtime.disk import RealDisk
from onceflow.runtime.rand import RealRand
from onceflow.types import LogId

NAME = "00000000000000000000.log"


def batch(first: int, *values: bytes, codec: Codec = Codec.NONE) -> bytes:
    columns = pa.record_batch({"value": pa.array(values, pa.binary())})
    return bytes(encode(columns, codec=codec, now_ms=1_700_000_000_000).assign(first, 0).buffer)


def segment(directory: Path, data: bytes, name: str = NAME) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_bytes(data)
    return path


def dump(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Any]]:
    status = run(["log", "dump", "--json", *arguments])
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_batches_and_records_of_a_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = marker(7, 3, commit=False, coordinator_epoch=0, timestamp_ms=5).assign(2, 0)
    first = batch(0, b"a", b"\xff", codec=Codec.ZSTD)
    segment(tmp_path / "orders-0", first + bytes(end.buffer))
    segment(tmp_path / "orders-0", batch(5, b"c"), "00000000000000000005.log")
    status, lines = dump(capsys, "--records", str(tmp_path))
    assert status == 0
    assert [each["type"] for each in lines] == ["batch", "batch", "file", "batch", "file"]
    assert [each["value"] for each in lines[0]["records"]] == ["a", {"base64": "/w=="}]
    assert (lines[0]["codec"], lines[0]["kind"], lines[0]["position"]) == ("zstd", "data", 0)
    assert (lines[1]["kind"], lines[1]["producer_id"]) == ("abort marker", 7)
    assert (lines[1]["position"], lines[1]["base_offset"]) == (len(first), 2)
    assert lines[1]["records"] == []
    assert (lines[2]["batches"], lines[2]["records"], lines[2]["problem"]) == (2, 3, None)
    assert lines[3]["base_offset"] == 5


def test_the_files_of_a_store_that_is_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = LogStore.open(RealDisk(tmp_path), Inline(), RealRand(), StoreConfig())
    ids = [LogId(UUID(int=1), partition) for partition in range(2)]
    store.create("orders", ids)
    columns = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())})
    for first in range(0, 10, 2):
        store.append(store.logs[ids[1]], encode(columns, now_ms=1).assign(first, 0))
    status, lines = dump(capsys, str(tmp_path))
    store.close()
    assert status == 0
    files = [each for each in lines if each["type"] == "file"]
    assert [(each["batches"], each["records"], each["problem"]) for each in files] == [
        (0, 0, None),
        (5, 10, None),
    ]


def test_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment(tmp_path, batch(0, b"a") + b"\x00" * 100)
    assert run(["log", "dump", "--records", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{path}\n")
    assert '2023-11-14T22:13:20.000Z  key=null  value="a"' in said
    assert "1 batch, 1 record, 69 bytes" in said
    assert "unfinished at byte 69: only zeros follow" in said


@pytest.mark.parametrize("at", [16, 21, 65])
def test_damage_is_told_with_its_place_and_the_next_file_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    good = batch(0, b"a")
    bad = bytearray(batch(1, b"b") + batch(2, b"c"))
    bad[at] ^= 0x55
    segment(tmp_path / "a-0", good + bytes(bad))
    segment(tmp_path / "b-0", good)
    status, lines = dump(capsys, str(tmp_path))
    assert status == 1
    files = [each for each in lines if each["type"] == "file"]
    assert [each["batches"] for each in files] == [1, 1]
    assert files[0]["problem"]["position"] == len(good)
    assert files[0]["problem"]["damage"] is True
    assert files[1]["problem"] is None


@pytest.mark.parametrize("at", [8, 9, 10, 11])
@pytest.mark.parametrize("behind", [0, 1, 2], ids=["last", "last-but-one", "middle"])
def test_a_damaged_length_is_not_taken_for_an_unfinished_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: int, behind: int
) -> None:
    bad = bytearray(batch(1, b"b"))
    bad[at] ^= 0x55
    after = b"".join(batch(2 + number, b"c") for number in range(behind))
    path = segment(tmp_path, batch(0, b"a") + bytes(bad) + after)
    status, lines = dump(capsys, str(path))
    assert status == 1
    assert (lines[-1]["batches"], lines[-1]["problem"]["position"]) == (1, 69)


@pytest.mark.parametrize(
    "tail",
    [b"\x01" * 40, b"\xff" * 12, bytes(16) + b"\x07" + bytes(10)],
    ids=["garbage", "negative-offset", "magic"],
)
def test_bytes_that_begin_no_batch_are_damage(tmp_path: Path, tail: bytes) -> None:
    path = segment(tmp_path, batch(0, b"a") + tail)
    walk = SegmentWalk(SegmentFile(path, 0, True))
    assert len(list(walk)) == 1
    assert walk.problem is not None
    assert walk.problem.is_damage


def test_an_offset_that_no_segment_can_hold_is_damage(tmp_path: Path) -> None:
    path = segment(tmp_path, batch(0, b"a") + batch(1 << 40, b"b"))
    walk = SegmentWalk(SegmentFile(path, 0, True))
    assert len(list(walk)) == 1
    assert walk.problem is not None
    assert walk.problem.is_damage


def test_a_batch_whose_records_are_wrong_is_damage_when_records_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from onceflow.records.batch import HEADER_SIZE, seal

    filler = seal(
        bytearray(HEADER_SIZE) + b"\x00" * 20,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )
    path = segment(tmp_path, bytes(filler.buffer))
    assert dump(capsys, str(path))[0] == 0
    status, lines = dump(capsys, "--records", str(path))
    assert status == 1
    assert "record 0" in lines[-1]["problem"]["reason"]


@pytest.mark.parametrize("cut", [1, 8, 30, 68])
def test_an_unfinished_end_is_no_damage_in_the_last_segment_only(tmp_path: Path, cut: int) -> None:
    data = batch(0, b"a") + batch(1, b"b")[:cut]
    path = segment(tmp_path, data)
    for is_last in (True, False):
        walk = SegmentWalk(SegmentFile(path, 0, is_last))
        assert [position for position, _ in walk] == [0]
        assert walk.problem is not None
        assert walk.problem.position == 69
        assert walk.problem.is_damage is not is_last


def test_offsets_that_go_back_are_damage(tmp_path: Path) -> None:
    path = segment(tmp_path, batch(5, b"a") + batch(4, b"b"))
    walk = SegmentWalk(SegmentFile(path, 0, True))
    assert len(list(walk)) == 1
    assert walk.problem is not None
    assert "base offset 4 where 6 is due" in walk.problem.reason


def test_batches_larger_than_a_read_are_whole(tmp_path: Path) -> None:
    large = bytes(range(256)) * 8192
    path = segment(tmp_path, batch(0, large) + batch(1, b"b") + batch(2, large))
    walk = SegmentWalk(SegmentFile(path, 0, True))
    assert [each.header.base_offset for _, each in walk] == [0, 1, 2]
    assert walk.problem is None


def test_where_nothing_is_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(NoSegments, match="does not exist"):
        find_segments(tmp_path / "nowhere")
    index = segment(tmp_path, b"", "00000000000000000000.index")
    for path in (tmp_path, index):
        with pytest.raises(NoSegments, match="holds no segments"):
            find_segments(path)
    assert run(["log", "dump", str(tmp_path)]) == 1
