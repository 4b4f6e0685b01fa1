"""What a stream answers Spark, on a cluster that is played: beginnings that stay, how much at once,
waiting."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.spark.errors.source import NoOffsetAtTime, OffsetsUnreadable, PartitionsDiffer
from onceflow.spark.source.offsets import BatchOffsets, OffsetSpan
from onceflow.spark.source.stream import ALL, LONGEST_WAIT_S, Admission
from onceflow.types import TopicPartition
from tests.unit.spark.source.scripted_cluster import A0, A1, EARLY, cluster, entry, logged, stream

# --- beginnings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["earliest", "latest"])
def test_a_batch_that_is_run_again_begins_where_it_began(word: str) -> None:
    logs = cluster((3, 10))
    first = stream(logs, startingOffsets=word)
    assert first.initial == first.initial == {}
    if word == "latest":
        assert first.latest(first.initial, ALL) == entry({"0": 10}, {"0": 10})
    logs.last[A0] = 20
    begin = 3 if word == "earliest" else 10
    end = first.latest(first.initial, ALL)
    assert end == entry({"0": begin}, {"0": 20})
    logs.last[A0] = 99
    again = stream(logs, startingOffsets=word)
    assert again.tasks(again.initial, logged(end)) == [(OffsetSpan("a", 0, begin, 20),)]


def test_where_a_query_begins_is_logged_even_when_there_is_nothing_to_read() -> None:
    logs = cluster((0, 10))
    first = stream(logs)
    begin = first.latest(first.initial, ALL)
    assert begin == entry({"0": 10}, {"0": 10})
    assert logs.waits == []
    assert first.tasks(first.initial, begin) == []
    logs.last[A0] = 15
    again = stream(logs)
    assert again.latest(logged(begin), ALL) == entry({"0": 10}, {"0": 15})


def test_a_batch_begins_where_the_last_one_ended() -> None:
    logs = cluster((0, 10), (0, 0))
    reading = stream(logs, **EARLY)
    first = reading.latest(reading.initial, ALL)
    logs.last |= {A0: 12, A1: 1}
    second = reading.latest(logged(first), ALL)
    assert second == entry({"0": 10, "1": 0}, {"0": 12, "1": 1})
    assert reading.tasks(logged(first), logged(second)) == [
        (OffsetSpan("a", 0, 10, 12),),
        (OffsetSpan("a", 1, 0, 1),),
    ]


def test_nothing_new_is_the_same_text() -> None:
    reading = stream(cluster((0, 10), (0, 5)), **EARLY)
    text = json.dumps(reading.latest(reading.initial, ALL))
    assert json.dumps(reading.latest(json.loads(text), ALL)) == text
    assert reading.tasks(json.loads(text), json.loads(text)) == []


@pytest.mark.parametrize(
    ("more", "begin"),
    [
        ({"startingOffsets": '{"a":{"0":7,"1":-1}}'}, {"0": 7, "1": 20}),
        ({"startingOffsets": '{"a":{"0":-2,"1":10}}'}, {"0": 3, "1": 10}),
        ({"startingTimestamp": "9"}, {"0": 9, "1": 9}),
        ({"startingOffsetsByTimestamp": '{"a":{"0":5,"1":0}}'}, {"0": 5, "1": 0}),
        (
            {"startingTimestamp": "15", "startingOffsetsByTimestampStrategy": "latest"},
            {"0": 10, "1": 15},
        ),
    ],
)
def test_a_query_begins_where_it_is_told(more: dict[str, str], begin: dict[str, int]) -> None:
    reading = stream(cluster((3, 10), (0, 20)), **more)
    assert reading.latest(reading.initial, ALL) == entry(begin, {"0": 10, "1": 20})


def test_a_time_that_no_record_has_is_an_error_that_names_the_partition() -> None:
    reading = stream(cluster((3, 10), (0, 20)), startingTimestamp="15")
    with pytest.raises(NoOffsetAtTime, match="partition a-0: no record is as late"):
        reading.latest(reading.initial, ALL)


def test_a_record_that_comes_while_times_are_looked_for_is_read() -> None:
    logs = cluster((3, 10))

    def one_comes() -> None:
        logs.last[A0] = 11

    logs.after_times = one_comes
    more = {"startingTimestamp": "15", "startingOffsetsByTimestampStrategy": "latest"}
    reading = stream(logs, **more)
    first = reading.latest(reading.initial, ALL)
    assert first == entry({"0": 10}, {"0": 11})


def test_offsets_must_be_given_for_all_partitions() -> None:
    reading = stream(cluster((0, 10), (0, 20)), startingOffsets='{"a":{"0":7},"b":{"0":7}}')
    with pytest.raises(PartitionsDiffer, match="a-1 is not in startingOffsets; b-0 is not read"):
        reading.latest(reading.initial, ALL)


def test_a_checkpoint_of_sparks_own_source_goes_on() -> None:
    logs = cluster((0, 10), (0, 20))
    reading = stream(logs, **EARLY)
    theirs = {"a": {"0": 4, "1": 20}}
    assert reading.latest(theirs, ALL) == entry({"0": 4, "1": 20}, {"0": 10, "1": 20})
    planned = {"a": {"0": 7, "1": 20}}
    assert reading.tasks(theirs, planned) == [(OffsetSpan("a", 0, 4, 7),)]
    with pytest.raises(OffsetsUnreadable, match="run it with that source first"):
        reading.tasks(reading.initial, planned)


# --- how much -----------------------------------------------------------------------------------


def test_a_batch_has_at_most_as_much_as_allowed() -> None:
    reading = stream(cluster((0, 300), (0, 100)), **EARLY)
    end = reading.latest(reading.initial, Admission(most=40))
    assert end == entry({"0": 0, "1": 0}, {"0": 30, "1": 10})
    assert reading.report() == entry({"0": 30, "1": 10}, {"0": 300, "1": 100})


def test_a_batch_waits_for_the_least_but_not_for_ever() -> None:
    logs = cluster((0, 10))
    reading = stream(logs, maxTriggerDelay="1s", **EARLY)
    least = Admission(least=5)
    first = reading.latest(reading.initial, least)
    logs.last[A0] = 12
    assert reading.latest(first, least) == first
    assert logs.waits == [LONGEST_WAIT_S]
    logs.now += 1.0
    second = reading.latest(first, least)
    assert second == entry({"0": 10}, {"0": 12})
    logs.last[A0] = 17
    assert reading.latest(second, Admission(least=5, most=4)) == entry({"0": 12}, {"0": 16})


def test_new_data_ends_the_waiting() -> None:
    logs = cluster((0, 10))
    reading = stream(logs, **EARLY)
    first = reading.latest(reading.initial, ALL)
    assert reading.latest(first, ALL) == first
    logs.comes = {A0: 11}
    assert reading.latest(first, ALL) == entry({"0": 10}, {"0": 11})
    assert logs.waits == [LONGEST_WAIT_S] * 2


def test_a_source_whose_query_is_kept_busy_by_another_does_not_wait() -> None:
    logs = cluster((0, 10))
    reading = stream(logs, **EARLY)
    first = reading.latest(reading.initial, ALL)
    reading.batch_done()  # its own
    assert reading.latest(first, ALL) == first
    reading.batch_done()  # of another, for here was nothing
    assert reading.latest(first, ALL) == first
    assert len(logs.waits) == 1
    assert reading.latest(first, ALL) == first
    assert len(logs.waits) == 2


def test_a_run_over_what_is_available_ends_where_it_began_to_look() -> None:
    logs = cluster((0, 10))
    reading = stream(logs, **EARLY)
    reading.take_available()
    first = reading.latest(reading.initial, Admission(most=6, least=100))
    assert first == entry({"0": 0}, {"0": 6})
    logs.last[A0] = 99
    logs.first[A1] = logs.last[A1] = 0
    second = reading.latest(first, Admission(most=6, least=100))
    assert second == entry({"0": 6}, {"0": 10})
    assert reading.latest(second, ALL) == second
    assert logs.waits == []


# --- any history --------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 9), st.booleans(), st.integers(1, 8)),
        max_size=12,
    ),
    st.sampled_from(["earliest", "latest"]),
)
def test_whatever_comes_and_whenever_it_restarts_every_offset_is_read_once(
    steps: list[tuple[int, int, bool, int]], word: str
) -> None:
    logs = cluster((0, 3), (0, 0))
    begin = dict(logs.last) if word == "latest" else dict(logs.first)
    reading = stream(logs, startingOffsets=word)
    start = reading.initial
    read: dict[TopicPartition, int] = begin
    for number, more, restarts, most in [*steps, (0, 0, True, 10**6), (0, 0, True, 10**6)]:
        end = logged(reading.latest(start, Admission(most=most)))
        if restarts:
            reading = stream(logs, startingOffsets=word)
            logs.last[TopicPartition("a", number)] += more
        for task in reading.tasks(start, end):
            for span in task:
                assert span.start == read[span.place]
                read[span.place] = span.end
        assert all(read[place] == BatchOffsets.from_log(end).end[place] for place in read)
        logs.last[TopicPartition("a", number)] += more
        start = end
    end = logged(reading.latest(start, ALL))
    assert {place: BatchOffsets.from_log(end).end[place] for place in read} == logs.last
