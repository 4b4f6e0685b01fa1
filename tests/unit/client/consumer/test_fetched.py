"""Fetched batches as columns and as records, and errors that survive a trip between processes."""

from __future__ import annotations

import gc
import pickle

import pytest

from onceflow.client.consumer.fetched import columns_of, offset_at, records_of
from onceflow.client.errors.consumer import LogTruncated, OffsetOutOfRange, RecordsUnreadable
from onceflow.client.errors.requests import ClientError
from onceflow.client.settings.consumer import FetcherSettings
from onceflow.errors import InvalidSetting
from onceflow.records.batch import StoredBatch
from onceflow.records.plain import PlainRecord, write_records
from tests.unit.client.consumer.simulated_readers import P0


def stored(offset: int, *values: bytes, stamped: bool = False) -> StoredBatch:
    batch = write_records([PlainRecord(b"k", value) for value in values], 5)
    if stamped:
        return batch.assign_log_append_time(offset, 0, 9)
    return batch.assign(offset, 0)


def test_each_batch_has_its_own_kind_of_time() -> None:
    rows = columns_of(P0, [stored(0, b"a", b"b"), stored(2, b"c", stamped=True)], 0)
    found = [(each.offset, each.timestamp, each.timestamp_type) for each in records_of([rows])]
    assert found == [(0, 5, 0), (1, 5, 0), (2, 9, 1)]


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (0, None, [0, 1, 2, 7, 8]),
        (1, None, [1, 2, 7, 8]),
        (4, None, [7, 8]),
        (9, None, []),
        (0, 8, [0, 1, 2, 7]),
        (1, 2, [1]),
        (3, 6, []),
        (5, 5, []),
    ],
)
def test_rows_outside_of_a_range_are_cut_off(
    first: int, end: int | None, expected: list[int]
) -> None:
    batches = [stored(0, b"a", b"b", b"c"), stored(7, b"d", b"e")]
    rows = columns_of(P0, batches, first, end)
    assert [each.offset for each in records_of([rows])] == expected
    if expected:
        assert offset_at(rows, 0) == expected[0]


def test_keys_and_values_of_every_kind_come_back() -> None:
    made = [PlainRecord(None, b"a"), PlainRecord(b"", b""), PlainRecord(b"k", None)]
    batch = write_records(made, 5).assign(0, 0)
    rows = columns_of(P0, [batch], 0)
    found = records_of([rows, rows.slice(1), rows.slice(2)])
    kinds = [(each.key, each.value) for each in found]
    assert kinds == [(made[at].key, made[at].value) for at in (0, 1, 2, 1, 2, 2)]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_of_garbage_is_left_as_it_was(enabled: bool) -> None:
    rows = columns_of(P0, [stored(0, b"a")], 0)
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        records_of([rows])
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize(
    "error",
    [
        LogTruncated.of(P0, 5, 3),
        RecordsUnreadable.of(P0, 5, "damaged"),
        OffsetOutOfRange(P0, "there is no offset 5"),
    ],
)
def test_errors_can_be_sent_to_another_process(error: ClientError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)
    assert copy.advice


def test_settings_of_a_fetcher_go_by_their_names() -> None:
    made = FetcherSettings.of({"auto.offset.reset": "none", "isolation.level": "read_committed"})
    assert (made.auto_offset_reset, made.read_committed) == ("none", True)
    with pytest.raises(InvalidSetting, match=r"auto\.offset\.reset = 'newest' is not allowed"):
        FetcherSettings.of(auto_offset_reset="newest")
