"""The answer to DescribeProducers, which is written by hand: as the library reads it."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, settings, strategies as st

from onceflow.wire.api import ApiKey
from onceflow.wire.codec import message_class
from onceflow.wire.describe_producers import (
    DescribedPartition,
    ProducerRow,
    write_describe_producers_response,
    write_producers,
)
from tests.doses import examples
from tests.property.wire.any_message import TEXT, int_of, their_reading

rows = st.builds(
    ProducerRow, int_of(64), int_of(32), int_of(32), int_of(64), int_of(32), int_of(64)
)
partitions = st.tuples(int_of(32), st.integers(-1, 120), st.lists(st.lists(rows, max_size=150)))


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(TEXT, st.lists(partitions, max_size=3)), max_size=3))
def test_the_library_reads_what_we_meant(
    topics: list[tuple[str, list[tuple[int, int, list[list[ProducerRow]]]]]],
) -> None:
    described = [
        (
            name,
            [
                DescribedPartition(
                    index, error, sum(map(len, parts)), [write_producers(part) for part in parts]
                )
                for index, error, parts in found
            ],
        )
        for name, found in topics
    ]
    message = message_class(ApiKey.DESCRIBE_PRODUCERS, 0, "response")
    theirs = their_reading(message, b"".join(write_describe_producers_response(described)))
    assert theirs.throttle_time.total_seconds() == 0
    assert [
        (
            topic.name,
            [
                (
                    each.partition_index,
                    each.error_code,
                    [
                        ProducerRow(
                            row.producer_id,
                            row.producer_epoch,
                            row.last_sequence,
                            row.last_timestamp,
                            row.coordinator_epoch,
                            row.current_txn_start_offset,
                        )
                        for row in each.active_producers
                    ],
                )
                for each in topic.partitions
            ],
        )
        for topic in theirs.topics
    ] == [
        (name, [(index, error, list(chain.from_iterable(parts))) for index, error, parts in found])
        for name, found in topics
    ]
