"""The options of the Spark source: what is understood, and all that is wrong told at once."""

from __future__ import annotations

import json
import logging
import pickle
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.spark.errors.source import InvalidOptions
from onceflow.spark.source.option_values import (
    Assign,
    AtOffsets,
    AtTimes,
    Edge,
    Subscribe,
    SubscribePattern,
)
from onceflow.spark.source.options import SourceOptions
from onceflow.types import TopicPartition

WHERE = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
NEEDED = {**WHERE, "subscribe": "orders"}
ORDERS = [TopicPartition("orders", number) for number in range(3)]


def options(**more: str) -> SourceOptions:
    return SourceOptions.of({**NEEDED, **more})


def problems(given: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(InvalidOptions) as caught:
        SourceOptions.of(given)
    return caught.value.problems


def test_what_is_left_out_is_as_in_sparks_own_source_but_for_isolation() -> None:
    found = options()
    assert found.selection == Subscribe(("orders",))
    assert found.stream_start is Edge.LATEST
    assert found.batch_start is Edge.EARLIEST
    assert found.batch_end is Edge.LATEST
    assert found.fail_on_data_loss
    assert found.max_offsets is None
    assert found.max_delay_ms == 15 * 60 * 1000
    assert found.settings.isolation_level == "read_committed"
    names = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert found.columns == names
    assert options(includeHeaders="true").columns == (*names, "headers")


@pytest.mark.parametrize("prefix", ["kafka.", "", "KAFKA."])
def test_settings_of_the_client_may_have_a_prefix(prefix: str) -> None:
    settings = {
        "bootstrap.servers": "one:1,two:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "me",
        "sasl.password": "hush",
        "ssl.ca.location": "ca.pem",
        "isolation.level": "read_uncommitted",
        "max.partition.fetch.bytes": "4096",
    }
    given = {prefix + key: value for key, value in settings.items()} | {"subscribe": "orders"}
    found = SourceOptions.of(given).settings
    assert [str(each) for each in found.bootstrap_servers] == ["one:1", "two:2"]
    assert found.security_protocol == "SASL_SSL"
    assert found.ssl_cafile == "ca.pem"
    assert not found.read_committed
    assert found.max_partition_fetch_bytes == 4096


def test_names_are_understood_in_any_letters_and_blanks_do_not_count() -> None:
    given = {**WHERE, "SUBSCRIBE": " orders , bills ", "startingoffsets": " Earliest "}
    found = SourceOptions.of(given)
    assert found.selection == Subscribe(("orders", "bills"))
    assert found.starting is Edge.EARLIEST


def test_topics_can_be_named_matched_or_assigned() -> None:
    matched = SourceOptions.of({**WHERE, "subscribePattern": "ord.*"}).selection
    assert isinstance(matched, SubscribePattern)
    assert matched.fits("orders")
    assert matched.fits("old-orders")
    assert not matched.fits("bills")
    assigned = SourceOptions.of({**WHERE, "assign": '{"orders":[0,2]}'}).selection
    assert assigned == Assign(frozenset({ORDERS[0], ORDERS[2]}))


def test_the_most_exact_of_several_positions_counts() -> None:
    by_offsets = {"startingOffsets": '{"orders":{"0":23,"1":-1,"2":-2}}'}
    given = dict(zip(ORDERS, (23, -1, -2), strict=True))
    assert options(**by_offsets).starting == AtOffsets(given)
    by_times = {**by_offsets, "startingOffsetsByTimestamp": '{"orders":{"0":5}}'}
    assert options(**by_times).starting == AtTimes({ORDERS[0]: 5})
    assert options(**by_times, startingTimestamp="7").starting == AtTimes(7)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500", 500), ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000)],
)
def test_times_are_written_as_spark_writes_them(text: str, milliseconds: int) -> None:
    assert options(maxTriggerDelay=text).max_delay_ms == milliseconds


def test_all_that_is_wrong_is_told_at_once_with_name_and_what_is_allowed() -> None:
    found = problems(
        {
            "subscrib": "orders",
            "startingOffsets": "first",
            "failOnDataLoss": "maybe",
            "minPartitions": "0",
            "kafka.isolation.level": "snapshot",
            "kafka.no.such.setting": "1",
            "kafka.auto.offset.reset": "earliest",
            "columns": "key,colour",
        }
    )
    told = "\n".join(found)
    for part in (
        "unknown option 'subscrib'; did you mean 'subscribe'?",
        "startingOffsets = 'first' is not allowed; it may be earliest, latest, or JSON",
        "failOnDataLoss = 'maybe' is not allowed; it may be true or false",
        "minPartitions = '0' is not allowed; it may be a whole number from 1",
        "kafka.isolation.level = 'snapshot' is not allowed; it may be",
        "unknown option 'kafka.no.such.setting'",
        "kafka.auto.offset.reset cannot be set: Spark keeps the offsets",
        "columns = 'key,colour' is not allowed",
        "kafka.bootstrap.servers is missing",
        "one of subscribe, subscribePattern, assign is missing",
    ):
        assert part in told
    assert len(found) == 10


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"assign": '{"orders":[0]}'}, "assign and subscribe contradict each other"),
        ({"bootstrap.servers": "b:1"}, "are the same; give one of them"),
        (
            {"minPartitions": "9", "maxPartitions": "8"},
            "minPartitions = 9 contradicts maxPartitions = 8",
        ),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger = 9 contradicts max",
        ),
        ({"columns": "value,headers"}, "set includeHeaders to true"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "contradicts"),
        ({"kafka.session.timeout.ms": "9"}, "members of consumer groups"),
        ({"kafka.sasl.jaas.config": "x"}, "give sasl.username and sasl.password instead"),
    ],
)
def test_what_contradicts_or_needs_something_else_is_told(more: dict[str, str], told: str) -> None:
    (found,) = problems({**NEEDED, **more})
    assert told in found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"orders":7}',
        '{"orders":{"0":-3}}',
        '{"orders":{"0":"5"}}',
        '{"orders":{"0":true}}',
        '{"orders":{"-1":5}}',
        '{"orders":{"0":5}',
    ],
)
def test_offsets_that_are_none_are_refused(text: str) -> None:
    (found,) = problems({**NEEDED, "startingOffsets": text})
    assert "startingOffsets" in found


def test_a_password_is_not_shown() -> None:
    found = problems({**NEEDED, "kafka.sasl.password": "", "kafka.sasl.username": "hush-me"})
    assert all("hush-me" not in each for each in found)


def test_assigned_partitions_must_be_those_that_have_offsets() -> None:
    given = {**WHERE, "assign": '{"orders":[0,1]}', "startingOffsets": '{"orders":{"0":1,"2":1}}'}
    assert [each[-8:] for each in problems(given)] == ["orders-1", "orders-2"]


def test_a_stream_has_no_end_and_a_batch_does_not_start_at_it() -> None:
    with pytest.raises(InvalidOptions, match="a stream has no end"):
        options(endingOffsets="latest").check_stream()
    for more, told in (
        ({"startingOffsets": "latest"}, "is for streams"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "a batch cannot have"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "a batch cannot have"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "later than endingTimestamp"),
    ):
        with pytest.raises(InvalidOptions, match=told):
            options(**more).check_batch()
    options(endingOffsets="latest", startingOffsets="earliest").check_batch()


def test_a_batch_that_ends_before_it_begins_is_refused() -> None:
    start, end = json.dumps({"orders": {"0": 5, "1": 5}}), json.dumps({"orders": {"0": 4, "2": 9}})
    with pytest.raises(InvalidOptions) as caught:
        options(startingOffsets=start, endingOffsets=end).check_batch()
    assert caught.value.problems == (
        "partition orders-1 has a start and no end",
        "partition orders-2 has an end and no start",
        "partition orders-0: offset 5 is behind the ending 4",
    )


def test_options_without_effect_are_taken_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "onceflow.spark"):
        options(**{"kafka.group.id": "mine", "groupIdPrefix": "x"}).warn()
    assert len(caplog.messages) == 2
    assert all("has no effect: no consumer group is joined" in each for each in caplog.messages)


def test_the_time_to_wait_for_records_has_two_names() -> None:
    assert options(**{"kafkaConsumer.pollTimeoutMs": "77"}).settings.default_api_timeout_ms == 77
    both = {"kafkaConsumer.pollTimeoutMs": "77", "kafka.default.api.timeout.ms": "88"}
    assert options(**both).settings.default_api_timeout_ms == 88


def test_options_and_their_error_travel_between_processes() -> None:
    found = options(includeHeaders="true", startingOffsets='{"orders":{"0":1}}')
    assert pickle.loads(pickle.dumps(found)) == found
    error = pickle.loads(pickle.dumps(InvalidOptions(["a", "b"])))
    assert error.problems == ("a", "b")
    assert str(error) == str(InvalidOptions(["a", "b"]))


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=30), st.text(max_size=30), max_size=6))
def test_whatever_is_written_is_understood_or_refused_by_name(given: dict[str, Any]) -> None:
    told = problems(given)  # there is no broker's address among so short names
    assert all(told)
