"""Produce and Fetch as the client speaks them: byte for byte what the message library says."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.client.codec.fetch import FetchAnswer, FetchFrom, read_fetch, write_fetch
from onceflow.client.codec.produce import ProduceAnswer, read_produce, write_produce
from onceflow.client.codec.versions import SPOKEN
from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import message_class
from tests.doses import examples
from tests.property.wire.any_message import TEXT, messages, their_bytes, their_reading

unhurried = settings(deadline=None, max_examples=examples(50))


def versions(key: ApiKey) -> list[int]:
    return list(range(SPOKEN[key].oldest, SPOKEN[key].newest + 1))


def int_of(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def topics_of(items: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, list[Any]]]:
    return st.dictionaries(TEXT, st.lists(items, max_size=3), max_size=3)


BATCHES = st.tuples(int_of(32), st.binary(max_size=300))
WANTED = st.builds(FetchFrom, int_of(32), int_of(64), int_of(32), int_of(32))


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_produce_requests_are_read_by_the_library_as_we_meant_them(version: int) -> None:
    message = message_class(ApiKey.PRODUCE, version, "request")

    @unhurried
    @given(topics_of(BATCHES), st.none() | TEXT, int_of(16), st.integers(0, 2**31 - 1))
    def check(
        topics: dict[str, list[tuple[int, bytes]]], transactional_id: str | None, acks: int, ms: int
    ) -> None:
        parts = write_produce(
            version, topics, transactional_id=transactional_id, acks=acks, timeout_ms=ms
        )
        found = their_reading(message, b"".join(parts))
        assert (found.transactional_id, found.acks) == (transactional_id, acks)
        assert found.timeout == timedelta(milliseconds=ms)
        assert {
            each.name: [(part.index, part.records) for part in each.partition_data]
            for each in found.topic_data
        } == topics

    check()


def test_batches_are_sent_from_where_they_are() -> None:
    batch = memoryview(bytearray(b"a batch"))
    parts = write_produce(
        12, {"orders": [(0, batch)]}, transactional_id=None, acks=-1, timeout_ms=1
    )
    assert any(each is batch for each in parts)


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_produce_answers_are_read_as_the_library_writes_them(version: int) -> None:
    message = message_class(ApiKey.PRODUCE, version, "response")

    @unhurried
    @given(messages(message))
    def check(answer: Any) -> None:
        expected = [
            produced(topic.name, each)
            for topic in answer.responses
            for each in topic.partition_responses
        ]
        assert read_produce(version, memoryview(their_bytes(answer))) == expected

    check()


def produced(topic: str, theirs: Any) -> ProduceAnswer:
    reasons = [
        f"record {each.batch_index}: {each.batch_index_error_message}"
        for each in getattr(theirs, "record_errors", ())
    ]
    when = theirs.log_append_time
    return ProduceAnswer(
        TopicPartition(topic, theirs.index),
        theirs.error_code.value,
        theirs.base_offset,
        -1 if when is None else round(when.timestamp() * 1000),
        getattr(theirs, "log_start_offset", -1),
        "; ".join(reasons) or getattr(theirs, "error_message", None),
    )


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_fetch_requests_are_read_by_the_library_as_we_meant_them(version: int) -> None:
    message = message_class(ApiKey.FETCH, version, "request")

    @unhurried
    @given(topics_of(WANTED), st.booleans(), st.integers(0, 2**31 - 1), int_of(32), int_of(32))
    def check(
        topics: dict[str, list[FetchFrom]], committed: bool, wait_ms: int, least: int, most: int
    ) -> None:
        body = write_fetch(
            version,
            topics,
            max_wait_ms=wait_ms,
            min_bytes=least,
            max_bytes=most,
            read_committed=committed,
        )
        found = their_reading(message, body)
        assert (found.replica_id, found.min_bytes, found.max_bytes) == (-1, least, most)
        assert found.max_wait == timedelta(milliseconds=wait_ms)
        assert found.isolation_level == int(committed)
        if version >= 7:
            assert (found.session_id, found.session_epoch) == (0, -1)
            assert found.forgotten_topics_data == ()
        assert {
            each.topic: [wanted(part) for part in each.partitions] for each in found.topics
        } == {
            topic: [each if version >= 9 else each._replace(leader_epoch=-1) for each in parts]
            for topic, parts in topics.items()
        }

    check()


def wanted(theirs: Any) -> FetchFrom:
    return FetchFrom(
        theirs.partition,
        theirs.fetch_offset,
        theirs.partition_max_bytes,
        getattr(theirs, "current_leader_epoch", -1),
    )


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_fetch_answers_are_read_as_the_library_writes_them(version: int) -> None:
    message = message_class(ApiKey.FETCH, version, "response")

    @unhurried
    @given(messages(message))
    def check(answer: Any) -> None:
        found = read_fetch(version, memoryview(their_bytes(answer)))
        assert found.error == (answer.error_code.value if version >= 7 else 0)
        assert found.throttle_ms == answer.throttle_time // timedelta(milliseconds=1)
        assert found.partitions == [
            fetched(topic.topic, each) for topic in answer.responses for each in topic.partitions
        ]

    check()


def fetched(topic: str, theirs: Any) -> FetchAnswer:
    return FetchAnswer(
        TopicPartition(topic, theirs.partition_index),
        theirs.error_code.value,
        theirs.high_watermark,
        theirs.last_stable_offset,
        getattr(theirs, "log_start_offset", -1),
        tuple((each.producer_id, each.first_offset) for each in theirs.aborted_transactions or ()),
        memoryview(theirs.records or b""),
        getattr(theirs, "preferred_read_replica", -1),
    )


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH])
@given(data=st.binary(max_size=80), version=st.sampled_from((4, 8, 11, 12)))
def test_bytes_that_are_no_answer_are_refused_by_name(
    key: ApiKey, data: bytes, version: int
) -> None:
    read = read_produce if key is ApiKey.PRODUCE else read_fetch
    with suppress(MessageMalformed):  # and nothing else
        read(version, memoryview(data))
