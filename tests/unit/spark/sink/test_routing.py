"""Which partition a row goes to: Kafka's rules, and the same row always the same way."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from onceflow.records.partitioning import partition_for_key
from onceflow.spark.errors.sink import RowRefused
from onceflow.spark.sink.routing import (
    LARGEST_HASH,
    TARGET,
    TopicLayout,
    murmur2_of,
    placed_where_it_was,
    split,
    targets,
    unknown_topics,
)
from onceflow.types import TopicPartition

LAYOUT = TopicLayout((("a", 2), ("b", 3)))


def test_numbers_run_on_from_topic_to_topic() -> None:
    assert LAYOUT.total == 5
    assert LAYOUT.bases() == {"a": 0, "b": 2}
    assert LAYOUT.partitions()[3] == TopicPartition("b", 1)
    grown = LAYOUT.with_topics([("c", 1), ("a", 9)])
    assert grown.topics == (("a", 2), ("b", 3), ("c", 1))
    assert grown.partitions()[:5] == LAYOUT.partitions()


@given(st.integers(1, 40), st.integers(1, 9))
def test_each_number_has_one_task(partitions: int, tasks: int) -> None:
    layout = TopicLayout((("a", partitions),))
    shares = [layout.of_task(task, tasks) for task in range(tasks)]
    assert sorted(number for share in shares for number in share) == list(range(partitions))
    for task, share in enumerate(shares):
        assert all(number % tasks == task for number in share)


@settings(deadline=None)  # the first call loads what is compiled
@given(st.lists(st.none() | st.binary(max_size=20), max_size=20), st.integers(1, 50))
def test_keys_go_where_every_client_sends_them(keys: list[bytes | None], partitions: int) -> None:
    hashes = murmur2_of(pa.array(keys, pa.binary())).to_pylist()
    for key, found in zip(keys, hashes, strict=True):
        if key is None:
            assert found is None
        else:
            assert 0 <= found <= LARGEST_HASH
            assert found % partitions == partition_for_key(key, partitions)


def test_targets_of_rows_that_name_their_topics() -> None:
    topics = pa.array(["a", "b", "b", "a", "b", "a"])
    hashes = pa.array([3, 3, LARGEST_HASH, 0, 0, 0], pa.int32())
    partitions = pa.array([None, None, None, 1, 3, -1], pa.int32())
    found = targets(LAYOUT, topics, hashes, partitions).to_pylist()
    assert found[:4] == [1, 2, 2 + LARGEST_HASH % 3, 1]
    assert found[4:] == [LAYOUT.outside] * 2
    assert targets(LAYOUT, topics, hashes, None).to_pylist()[3:] == [0, 2, 0]


def test_a_row_without_a_topic() -> None:
    with pytest.raises(RowRefused, match="no topic"):
        targets(LAYOUT, pa.array(["a", None]), pa.array([0, 0], pa.int32()), None)


def test_topics_that_are_not_known_yet() -> None:
    assert unknown_topics(LAYOUT, pa.array(["z", "a", None, "c", "z"])) == ["c", "z"]
    assert unknown_topics(LAYOUT, pa.array(["a"])) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=50))
def test_rows_of_a_target_stay_in_order(numbers: list[int]) -> None:
    values = pa.array([b"%d" % each for each in range(len(numbers))], pa.binary())
    batch = pa.record_batch({"value": values, TARGET: pa.array(numbers, pa.int32())})
    found = {target: rows.column("value").to_pylist() for target, rows in split(batch)}
    assert found.keys() == set(numbers)
    for target, rows in found.items():
        assert rows == [b"%d" % at for at, number in enumerate(numbers) if number == target]


def test_rows_that_stay_go_where_they_say_else_by_their_key() -> None:
    keys = [b"x", b"y", None, b"z"]
    batch = pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([b""] * 4),
            "partition": pa.array([2, None, 1, None], pa.int32()),
        }
    )
    layout = TopicLayout((("a", 3),))
    found = placed_where_it_was(layout, batch).column(TARGET).to_pylist()
    assert found == [2, partition_for_key(b"y", 3), 1, partition_for_key(b"z", 3)]
    keyed = placed_where_it_was(layout, batch.select(["key", "value"]).take([0, 1]))
    assert keyed.column(TARGET).to_pylist() == [partition_for_key(key, 3) for key in (b"x", b"y")]
    for columns in (["key", "value"], ["value", "partition"], ["value"]):
        with pytest.raises(RowRefused, match="neither a partition nor a key"):
            placed_where_it_was(layout, batch.select(columns))
