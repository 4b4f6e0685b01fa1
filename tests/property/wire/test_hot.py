"""Produce and Fetch, which are read and written by hand: byte for byte what the library says."""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st
from kio.schema.produce.v9 import request as v9

from onceflow.broker.router import SERVED
from onceflow.wire import fetch, produce
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import message_class
from tests.doses import examples
from tests.property.wire.any_message import TEXT, int_of, messages, their_bytes, their_reading

unhurried = settings(deadline=None, max_examples=examples(60))


def versions(key: ApiKey) -> list[int]:
    return list(range(SERVED[key].lowest, SERVED[key].highest + 1))


def sent(request: Any) -> tuple[memoryview, int]:
    """A request somewhere in a frame that can be written to."""
    return memoryview(bytearray(b"head" + their_bytes(request) + b"tail")), 4


# --- Produce -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_produce_requests_are_read_as_the_library_writes_them(version: int) -> None:
    message = message_class(ApiKey.PRODUCE, version, "request")

    @unhurried
    @given(request=messages(message))
    def check(request: Any) -> None:
        if version >= produce.TOPIC_IDS_FROM and any(
            t.topic_id is None for t in request.topic_data
        ):
            return
        found = produce.read_produce_request(*sent(request), version)
        assert found.transactional_id == request.transactional_id
        assert found.acks == request.acks
        assert found.timeout_ms == round(request.timeout.total_seconds() * 1000)
        by_id = version >= produce.TOPIC_IDS_FROM
        assert [
            (
                topic,
                [
                    (each.partition, None if each.records is None else bytes(each.records))
                    for each in parts
                ],
            )
            for topic, parts in found.topics
        ] == [
            (
                topic.topic_id if by_id else topic.name,
                [(each.index, each.records) for each in topic.partition_data],
            )
            for topic in request.topic_data
        ]

    check()


def test_records_of_a_produce_request_are_a_part_of_the_frame_and_can_be_patched() -> None:
    request = produce_request(b"0123456789")
    frame, at = sent(request)
    found = produce.read_produce_request(frame, at, 9)
    records = found.topics[0][1][0].records
    assert records is not None
    records[0:3] = b"new"
    assert b"new3456789" in bytes(frame)


def produce_request(records: bytes | None) -> Any:
    part = v9.PartitionProduceData(index=0, records=records)
    topic = v9.TopicProduceData(name="orders", partition_data=(part,))
    return v9.ProduceRequest(
        transactional_id=None, acks=1, timeout=timedelta(seconds=1), topic_data=(topic,)
    )


RECORD_ERRORS = st.lists(st.tuples(int_of(32), st.none() | TEXT), max_size=2).map(tuple)
PRODUCE_RESULTS = st.builds(
    produce.ProduceResult,
    partition=int_of(32),
    error=st.integers(-1, 120),
    base_offset=int_of(64),
    log_append_time=st.just(-1) | st.integers(0, 2**42),
    log_start_offset=int_of(64),
    message=st.none() | TEXT,
    record_errors=RECORD_ERRORS,
)


def topics_of(
    results: st.SearchStrategy[Any], by_id: bool
) -> st.SearchStrategy[list[tuple[Any, list[Any]]]]:
    topic: st.SearchStrategy[Any] = st.uuids() if by_id else TEXT
    return st.lists(st.tuples(topic, st.lists(results, max_size=3)), max_size=3)


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_produce_answers_are_read_by_the_library_as_we_meant_them(version: int) -> None:
    by_id = version >= produce.TOPIC_IDS_FROM
    message = message_class(ApiKey.PRODUCE, version, "response")

    @unhurried
    @given(response=topics_of(PRODUCE_RESULTS, by_id))
    def check(response: produce.ProduceResponse) -> None:
        found = their_reading(message, produce.write_produce_response(response, version))
        assert found.throttle_time.total_seconds() == 0
        assert len(found.responses) == len(response)
        for theirs, (topic, results) in zip(found.responses, response, strict=True):
            assert (theirs.topic_id if by_id else theirs.name) == topic
            for one, result in zip(theirs.partition_responses, results, strict=True):
                assert_produced(version, one, result)

    check()


def assert_produced(version: int, theirs: Any, result: produce.ProduceResult) -> None:
    assert theirs.index == result.partition
    assert theirs.error_code == result.error
    assert theirs.base_offset == result.base_offset
    when = theirs.log_append_time
    assert result.log_append_time == (-1 if when is None else round(when.timestamp() * 1000))
    if version >= 5:
        assert theirs.log_start_offset == result.log_start_offset
    if version >= 8:
        assert theirs.error_message == result.message
        found = [
            (each.batch_index, each.batch_index_error_message) for each in theirs.record_errors
        ]
        assert found == list(result.record_errors)
    if version >= 10:
        assert theirs.current_leader.leader_id == -1


# --- Fetch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_fetch_requests_are_read_as_the_library_writes_them(version: int) -> None:
    message = message_class(ApiKey.FETCH, version, "request")
    by_id = version >= fetch.TOPIC_IDS_FROM

    @unhurried
    @given(request=messages(message))
    def check(request: Any) -> None:
        if by_id:
            request = with_ids(request)
        found = fetch.read_fetch_request(*sent(request), version)
        replica = request.replica_state.replica_id if version >= 15 else request.replica_id
        assert found.replica_id == replica
        assert found.max_wait_ms == round(request.max_wait.total_seconds() * 1000)
        assert (found.min_bytes, found.max_bytes) == (request.min_bytes, request.max_bytes)
        assert found.read_committed == (request.isolation_level == 1)
        session = (request.session_id, request.session_epoch) if version >= 7 else (0, -1)
        assert (found.session_id, found.session_epoch) == session
        assert found.topics == [
            (topic.topic_id if by_id else topic.topic, [wanted(each) for each in topic.partitions])
            for topic in request.topics
        ]

    check()


def test_what_follows_a_forgotten_topic_without_partitions_is_found() -> None:
    top = struct.pack(">iiibii", 500, 1, 1 << 20, 0, 0, -1)
    forgotten = b"\x02" + bytes(16) + b"\x00" + b"\x00"  # one topic, null partitions, no tags
    state = struct.pack(">iq", 5, -1) + b"\x00"
    tags = b"\x01" + b"\x01" + bytes([len(state)]) + state
    body = top + b"\x01" + forgotten + b"\x01" + tags
    assert fetch.read_fetch_request(memoryview(body), 0, 15).replica_id == 5


def with_ids(request: Any) -> Any:
    topics = tuple(each for each in request.topics if each.topic_id is not None)
    forgotten = tuple(each for each in request.forgotten_topics_data if each.topic_id is not None)
    return replace(request, topics=topics, forgotten_topics_data=forgotten)


def wanted(each: Any) -> fetch.FetchPartition:
    return fetch.FetchPartition(
        each.partition,
        getattr(each, "current_leader_epoch", -1),
        each.fetch_offset,
        getattr(each, "last_fetched_epoch", -1),
        each.partition_max_bytes,
    )


class Held(NamedTuple):
    """Records that are in memory already."""

    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


FETCH_RESULTS = st.builds(
    fetch.FetchResult,
    partition=int_of(32),
    error=st.integers(-1, 120),
    high_watermark=int_of(64),
    last_stable_offset=int_of(64),
    log_start_offset=int_of(64),
    aborted=st.none() | st.lists(st.tuples(int_of(64), int_of(64)), max_size=3),
    records=st.none() | st.builds(Held, st.binary(max_size=300)),
    diverging_epoch=st.none() | st.tuples(int_of(32), int_of(64)),
)


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_fetch_answers_are_read_by_the_library_as_we_meant_them(version: int) -> None:
    by_id = version >= fetch.TOPIC_IDS_FROM
    message = message_class(ApiKey.FETCH, version, "response")

    @unhurried
    @given(topics=topics_of(FETCH_RESULTS, by_id), error=st.integers(-1, 120))
    def check(topics: list[tuple[Any, list[fetch.FetchResult]]], error: int) -> None:
        parts = fetch.write_fetch_response(fetch.FetchResponse(topics, error), version)
        assert all(isinstance(each, bytes) or each.length for each in parts), "no empty spans"
        found = their_reading(message, b"".join(flat(each) for each in parts))
        assert found.throttle_time.total_seconds() == 0
        if version >= 7:
            assert (found.error_code, found.session_id) == (error, 0)
        for theirs, (topic, results) in zip(found.responses, topics, strict=True):
            assert (theirs.topic_id if by_id else theirs.topic) == topic
            for one, result in zip(theirs.partitions, results, strict=True):
                assert_fetched(version, one, result)

    check()


def flat(part: fetch.Part) -> bytes:
    if isinstance(part, bytes):
        return part
    assert isinstance(part, Held)
    return part.data


def assert_fetched(version: int, theirs: Any, result: fetch.FetchResult) -> None:
    assert theirs.partition_index == result.partition
    assert theirs.error_code == result.error
    assert theirs.high_watermark == result.high_watermark
    assert theirs.last_stable_offset == result.last_stable_offset
    if version >= 5:
        assert theirs.log_start_offset == result.log_start_offset
    aborted = theirs.aborted_transactions
    pairs = None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted]
    assert pairs == (None if result.aborted is None else list(result.aborted))
    if version >= 11:
        assert theirs.preferred_read_replica == -1
    # Never null: no records are empty records, as in Apache Kafka's answers.
    assert theirs.records == (b"" if result.records is None else flat(result.records))
    if version >= 12:
        expected = result.diverging_epoch or (-1, -1)
        assert (theirs.diverging_epoch.epoch, theirs.diverging_epoch.end_offset) == expected
        assert theirs.current_leader.leader_id == -1
