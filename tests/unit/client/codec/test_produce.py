"""Answers to Produce, read by hand: every part of them, and nothing that is cut off."""

from __future__ import annotations

import pytest

from onceflow.client.codec.produce import read_produce
from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition
from onceflow.wire.produce import ProduceResult, write_produce_response


def test_every_part_of_a_produce_answer_is_read() -> None:
    refused = ProduceResult(4, error=87, message="no", record_errors=((2, "no key"), (3, None)))
    body = write_produce_response([("a", [ProduceResult(0, base_offset=9)]), ("b", [refused])], 12)
    first, second = read_produce(12, memoryview(body))
    assert first == (TopicPartition("a", 0), 0, 9, -1, -1, None)
    assert second == (TopicPartition("b", 4), 87, -1, -1, -1, "record 2: no key; record 3: None")
    for size in range(len(body) - 6):  # behind it is only the throttle time
        with pytest.raises(MessageMalformed):
            read_produce(12, memoryview(body)[:size])
