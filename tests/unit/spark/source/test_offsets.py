"""Offsets of the Spark source as texts, and how a batch is limited and divided."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.spark.errors.source import OffsetsUnreadable
from onceflow.spark.source.offsets import (
    BatchOffsets,
    Division,
    OffsetSpan,
    count_new,
    divide,
    limited,
    spans,
)
from onceflow.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

places = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 12))
offsets = st.dictionaries(places, st.integers(0, 2**62), max_size=6)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    start = draw(st.dictionaries(places, st.integers(0, 2**40), min_size=1, max_size=8))
    sizes = {place: draw(st.integers(0, 1000)) for place in start}
    return start, {place: start[place] + sizes[place] for place in start}


@st.composite
def found_spans(draw: st.DrawFn) -> list[OffsetSpan]:
    return spans(*draw(ranges()), {})


def test_the_text_is_the_same_whatever_the_order() -> None:
    one = BatchOffsets({A1: 1, A0: 0}, {TopicPartition("a", 10): 7, B0: 2, A1: 3, A0: 4})
    other = BatchOffsets({A0: 0, A1: 1}, {A0: 4, A1: 3, B0: 2, TopicPartition("a", 10): 7})
    text = (
        '{"from": {"a": {"0": 0, "1": 1}}, "to": {"a": {"0": 4, "1": 3, "10": 7}, "b": {"0": 2}}}'
    )
    assert json.dumps(one.to_log()) == json.dumps(other.to_log()) == text


@settings(deadline=None)
@given(offsets, offsets)
def test_what_is_logged_is_read_back(
    start: dict[TopicPartition, int], end: dict[TopicPartition, int]
) -> None:
    batch = BatchOffsets(start, end)
    again = BatchOffsets.from_log(json.loads(json.dumps(batch.to_log())))
    assert again == batch
    assert json.dumps(again.to_log()) == json.dumps(batch.to_log())


@settings(deadline=None)
@given(offsets)
def test_what_sparks_own_source_has_logged_is_read_too(end: dict[TopicPartition, int]) -> None:
    topics: dict[str, dict[str, int]] = {}
    for place, offset in end.items():
        topics.setdefault(place.topic, {})[str(place.partition)] = offset
    assert BatchOffsets.from_log(topics) == BatchOffsets({}, end)


def test_topics_may_be_called_from_and_to() -> None:
    theirs = {"from": {"0": 1}, "to": {"0": 2}}
    expected = {TopicPartition("from", 0): 1, TopicPartition("to", 0): 2}
    assert BatchOffsets.from_log(theirs) == BatchOffsets({}, expected)


@pytest.mark.parametrize(
    "entry",
    [
        {"offset": 7},
        {"a": {"0": "7"}},
        {"a": {"x": 7}},
        {"a": {"0": True}},
        {"from": {"a": {"0": 1}}, "to": {"a": {"0": None}}},
    ],
)
def test_offsets_of_other_sources_are_refused(entry: Mapping[str, object]) -> None:
    with pytest.raises(OffsetsUnreadable, match="not an offset of this source"):
        BatchOffsets.from_log(entry)


def test_only_what_lies_between_is_to_be_read() -> None:
    ends = {B0: 7, A1: 5, A0: 10, TopicPartition("c", 0): 4}
    found = spans({A0: 3, A1: 5, B0: 9}, ends, {})
    assert found == [OffsetSpan("a", 0, 3, 10)]


# --- limits -------------------------------------------------------------------------------------


def test_a_limit_is_shared_in_proportion_and_nobody_starves() -> None:
    start = dict.fromkeys((A0, A1, B0), 100)
    end = {A0: 1100, A1: 101, B0: 100}
    assert limited(500, start, end) == {A0: 599, A1: 101, B0: 100}
    assert limited(1, start, {A0: 110, A1: 110, B0: 110}) == {A0: 101, A1: 101, B0: 101}


@settings(deadline=None)
@given(ranges(), st.integers(1, 5000))
def test_a_limited_batch_goes_on_and_not_too_far(
    found: tuple[dict[TopicPartition, int], dict[TopicPartition, int]], limit: int
) -> None:
    start, end = found
    ends = limited(limit, start, end)
    assert ends.keys() == end.keys()
    assert all(start[place] <= ends[place] <= end[place] for place in end)
    new, available = count_new(start, ends), count_new(start, end)
    busy = [place for place in end if end[place] > start[place]]
    assert new <= limit + len(busy)
    assert all(ends[place] > start[place] for place in busy)
    if available <= limit:
        assert new >= available - len(busy)  # shares are rounded down


# --- tasks --------------------------------------------------------------------------------------


def test_without_wishes_there_is_one_task_for_each_partition() -> None:
    found = [OffsetSpan("a", 0, 0, 10), OffsetSpan("a", 1, 5, 5), OffsetSpan("b", 0, 1, 2)]
    assert divide(found, Division()) == [(found[0],), (found[2],)]


def test_large_spans_are_split_until_there_are_enough_tasks() -> None:
    found = [OffsetSpan("a", 0, 0, 100), OffsetSpan("a", 1, 0, 300), OffsetSpan("b", 0, 0, 2)]
    parts = [task[0] for task in divide(found, Division(min_partitions=5))]
    assert parts == [
        OffsetSpan("a", 0, 0, 100),
        OffsetSpan("a", 1, 0, 100),
        OffsetSpan("a", 1, 100, 200),
        OffsetSpan("a", 1, 200, 300),
        OffsetSpan("b", 0, 0, 2),
    ]


def test_no_task_has_more_records_than_allowed() -> None:
    parts = divide([OffsetSpan("a", 0, 7, 17)], Division(max_records=4))
    assert [(task[0].start, task[0].end) for task in parts] == [(7, 10), (10, 13), (13, 17)]


def test_many_partitions_are_gathered_into_few_tasks_of_one_size() -> None:
    found = [OffsetSpan("a", number, 0, size) for number, size in enumerate((90, 10, 40, 50))]
    tasks = divide(found, Division(max_partitions=2))
    assert tasks == [(found[0], found[1]), (found[2], found[3])]


@settings(deadline=None)
@given(
    found_spans(),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(5, 500),
)
def test_every_offset_is_read_by_exactly_one_task(
    found: list[OffsetSpan], least: int | None, most: int | None, records: int | None
) -> None:
    if least is not None and most is not None and least > most:
        least, most = most, least
    division = Division(min_partitions=least, max_partitions=most, max_records=records)
    tasks = divide(found, division)
    parts = sorted(span for task in tasks for span in task)
    assert all(span.size > 0 for span in parts)
    joined: list[OffsetSpan] = []
    for span in parts:
        if joined and joined[-1].place == span.place and joined[-1].end == span.start:
            joined[-1] = joined[-1]._replace(end=span.end)
        else:
            joined.append(span)
    assert joined == found
    assert most is None or len(tasks) <= most
    assert records is None or all(span.size <= records for span in parts)
