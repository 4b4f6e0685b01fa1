"""Java's hash of a text, and the partition that Kafka makes of it."""

from __future__ import annotations

import pytest

from onceflow.records.partitioning import java_hash, partition_by_hash


@pytest.mark.parametrize(
    ("text", "value"),
    # The values of Java's String.hashCode.
    [
        ("", 0),
        ("g", 103),
        ("hello world", 1_794_106_052),
        ("Aa", 2112),
        ("BB", 2112),
        ("my-transactional-id", -959_806_496),
        ("polygenelubricants", -(2**31)),
        ("😀", 31 * 0xD83D + 0xDE00),
    ],
)
def test_the_hash_is_javas(text: str, value: int) -> None:
    assert java_hash(text) == value % 2**32
    assert partition_by_hash(text, 50) == (0 if value == -(2**31) else abs(value) % 50)


def test_a_single_partition_has_everything() -> None:
    assert partition_by_hash("orders", 1) == 0
