"""Names, counts and assignments of topics, held against Apache Kafka 4.3.1's answers."""

from __future__ import annotations

import pytest

from onceflow.broker.requests.refusal import RequestRefusal
from onceflow.broker.topics.rules import (
    Assignment,
    increase_refusal,
    layout_refusal,
    name_refusal,
    new_name_refusal,
    partition_count,
    total_refusal,
)
from onceflow.wire.error_codes import ErrorCode

NODE = 1
LETTERS = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
INCLUDES = "The manual partition assignment includes"
MANUAL = "A manual partition assignment was specified, but"


@pytest.mark.parametrize("name", ["a", "a.b-c_D9", "...", "__consumer_offsets", "a" * 249])
def test_good_names(name: str) -> None:
    assert name_refusal(name) is None
    assert new_name_refusal(name, ["other"]) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, f"the length of '{'a' * 250}' is longer than the max allowed length 249"),
        ("a b", f"'a b' {LETTERS}"),
        ("a/b", f"'a/b' {LETTERS}"),
        ("ä", f"'ä' {LETTERS}"),
        ("a\n", f"'a\n' {LETTERS}"),
    ],
)
def test_bad_names(name: str, reason: str) -> None:
    refusal = RequestRefusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")
    assert name_refusal(name) == refusal
    assert new_name_refusal(name, []) == refusal


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("x.y_z", ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'x.y_z' already exists."),
        (
            "x_y.z",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic 'x_y.z' collides with existing topic: x.y_z",
        ),
        (
            "__cluster_metadata",
            ErrorCode.INVALID_REQUEST,
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
    ],
)
def test_names_that_are_taken(name: str, code: ErrorCode, message: str) -> None:
    assert new_name_refusal(name, ["other", "x.y_z"]) == RequestRefusal(code, message)


def test_a_letter_makes_names_differ() -> None:
    assert new_name_refusal("x-y_z", ["x.y_z", "x.y"]) is None
    assert new_name_refusal("xy", ["x.y", "x_y"]) is None


@pytest.mark.parametrize(("partitions", "replicas"), [(1, 1), (-1, 1), (5, -1), (-1, -1)])
def test_good_counts(partitions: int, replicas: int) -> None:
    assert layout_refusal(partitions, replicas, [], NODE) is None


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
        (0, 5, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (0, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (5, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_bad_counts(partitions: int, replicas: int, code: ErrorCode) -> None:
    refusal = layout_refusal(partitions, replicas, [], NODE)
    assert refusal is not None
    assert refusal.code is code


def test_what_is_wrong_with_counts_is_said() -> None:
    assert layout_refusal(0, 1, [], NODE) == (
        37,
        "Number of partitions was set to an invalid non-positive value.",
    )
    assert layout_refusal(1, 0, [], NODE) == (
        38,
        "Replication factor must be larger than 0, or -1 to use the default value.",
    )
    refusal = layout_refusal(1, 3, [], NODE)
    assert refusal is not None
    assert "replication factor of 3 cannot be reached because only 1 broker(s)" in refusal.message


@pytest.mark.parametrize("order", [[0], [0, 1], [1, 0]])
def test_good_assignments(order: list[int]) -> None:
    assignments = [Assignment(partition, [NODE]) for partition in order]
    assert layout_refusal(-1, -1, assignments, NODE) is None
    assert partition_count(-1, assignments, 7) == len(order)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ([(1, [1])], "partitions should be a consecutive 0-based integer sequence"),
        ([(0, [1]), (2, [1])], "partitions should be a consecutive 0-based integer sequence"),
        ([(-1, [1])], "partitions should be a consecutive 0-based integer sequence"),
        ([(0, [1]), (0, [1])], "Found multiple manual partition assignments for partition 0"),
        ([(0, [1]), (1, [])], f"{INCLUDES} an empty replica list."),
        ([(0, [1, 1])], f"{INCLUDES} the broker 1 more than once."),
        ([(0, [5, 1, 1])], f"{INCLUDES} the broker 1 more than once."),
        ([(0, [1, 2])], f"{INCLUDES} broker 2, but no such broker is registered."),
        ([(0, [2, 2])], f"{INCLUDES} broker 2, but no such broker is registered."),
        ([(0, [-1])], f"{INCLUDES} broker -1, but no such broker is registered."),
        ([(0, [5]), (2, [1])], f"{INCLUDES} broker 5, but no such broker is registered."),
    ],
)
def test_bad_assignments(assignments: list[tuple[int, list[int]]], message: str) -> None:
    refusal = layout_refusal(-1, -1, [Assignment(*each) for each in assignments], NODE)
    assert refusal == RequestRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


@pytest.mark.parametrize(
    ("partitions", "replicas", "what"),
    [
        (1, -1, "numPartitions"),
        (-1, 1, "replication factor"),
        (0, 0, "replication factor"),
    ],
)
def test_assignments_exclude_counts(partitions: int, replicas: int, what: str) -> None:
    refusal = layout_refusal(partitions, replicas, [Assignment(0, [NODE])], NODE)
    assert refusal == RequestRefusal(
        ErrorCode.INVALID_REQUEST, f"{MANUAL} {what} was not set to -1."
    )


def test_the_default_count_is_the_brokers() -> None:
    assert partition_count(-1, [], 7) == 7
    assert partition_count(3, [], 7) == 3


@pytest.mark.parametrize(
    ("count", "assignments", "code", "message"),
    [
        (3, [[1]], ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partition(s)."),
        (
            -1,
            None,
            ErrorCode.INVALID_PARTITIONS,
            "The topic t currently has 3 partition(s); -1 would not be an increase.",
        ),
        (
            5,
            [[1]],
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            4,
            [],
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified.",
        ),
        (4, [[]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{INCLUDES} an empty replica list."),
        (
            5,
            [[1], [2]],
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{INCLUDES} broker 2, but no such broker is registered.",
        ),
        (
            20_000,
            None,
            ErrorCode.POLICY_VIOLATION,
            "Excessively large number of partitions per request.",
        ),
    ],
)
def test_a_topic_that_cannot_grow(
    count: int, assignments: list[list[int]] | None, code: ErrorCode, message: str
) -> None:
    assert increase_refusal("t", 3, count, assignments, NODE) == RequestRefusal(code, message)


@pytest.mark.parametrize(("count", "assignments"), [(4, None), (4, [[1]]), (5, [[1], [1]])])
def test_a_topic_that_can_grow(count: int, assignments: list[list[int]] | None) -> None:
    assert increase_refusal("t", 3, count, assignments, NODE) is None


def test_one_request_makes_so_many_partitions_and_no_more() -> None:
    assert total_refusal([4_000, 6_000]) is None
    refusal = total_refusal([6_000, 4_001])
    assert refusal is not None
    assert refusal.code is ErrorCode.POLICY_VIOLATION
