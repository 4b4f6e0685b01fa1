"""Rows of a task in larger pieces than Spark's, and as many tasks as are worth it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from onceflow.spark.sink.routing import PORTION_BYTES, TARGET, portions, split
from onceflow.spark.source.offsets import (
    RECORDS_WORTH_A_TASK,
    Division,
    OffsetSpan,
    divide,
    worth_tasks,
)


def rows(values: list[bytes], target: int = 0, **more: list[bytes]) -> pa.RecordBatch:
    targets = pa.array([target] * len(values), pa.int32())
    columns = {name: pa.array(each, pa.binary()) for name, each in more.items()}
    return pa.record_batch({"value": pa.array(values, pa.binary()), **columns, TARGET: targets})


def values_of(batches: list[pa.RecordBatch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@given(st.lists(st.lists(st.binary(max_size=5), max_size=5), max_size=8))
def test_portions_hold_the_same_rows_in_the_same_order(pieces: list[list[bytes]]) -> None:
    found = list(portions(rows(piece) for piece in pieces))
    assert values_of(found) == [value for piece in pieces for value in piece]
    assert len(found) <= 1


def test_a_portion_ends_when_it_is_large_enough() -> None:
    piece = rows([b"x" * (PORTION_BYTES // 2)])
    found = list(portions([piece] * 5))
    assert [batch.num_rows for batch in found] == [2, 2, 1]


def test_pieces_with_other_columns_do_not_share_a_portion() -> None:
    plain, keyed = rows([b"a"]), rows([b"b"], key=[b"k"])
    found = list(portions([plain, plain, keyed, plain]))
    assert [batch.num_rows for batch in found] == [2, 1, 1]
    assert values_of(found) == [b"a", b"a", b"b", b"a"]


@pytest.mark.parametrize("largest", [3, 2**31 - 1])
def test_rows_are_split_by_small_and_by_large_numbers(largest: int) -> None:
    numbers = [largest, 0, largest, 1, 0]
    batch = pa.record_batch(
        {"value": pa.array([b"%d" % at for at in range(5)]), TARGET: pa.array(numbers, pa.int32())}
    )
    found = {target: values_of([part]) for target, part in split(batch)}
    assert found == {0: [b"1", b"4"], 1: [b"3"], largest: [b"0", b"2"]}


@pytest.mark.parametrize(
    ("records", "tasks"),
    [(0, 1), (10, 1), (2 * RECORDS_WORTH_A_TASK, 2), (100 * RECORDS_WORTH_A_TASK, 4)],
)
def test_few_records_are_worth_few_tasks(records: int, tasks: int) -> None:
    spans = [OffsetSpan("a", number, 0, records // 2) for number in range(2)]
    assert worth_tasks(spans, 4) == tasks
    assert len(divide(spans, Division(max_partitions=worth_tasks(spans, 4)))) <= tasks
