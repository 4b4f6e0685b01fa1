"""Records without a key stay together until their batch is closed, then move on."""

from __future__ import annotations

from itertools import pairwise

import pytest

from onceflow.client.producer.accumulator import Accumulator, BatchLimits
from onceflow.client.producer.batch import RECORD_OVERHEAD
from onceflow.client.producer.idempotence import BatchResponse, Sequences
from onceflow.client.producer.partitioner import StickyPartitioner, partition_for_key
from onceflow.testing.rand import SimRand
from onceflow.types import TopicPartition

ROOM = 61 + 3 * (RECORD_OVERHEAD + 4)


class Sender:
    """What a producer does with a record without a key."""

    def __init__(self, partitions: int = 4) -> None:
        self.core = Accumulator(BatchLimits(batch_size=ROOM), Sequences(idempotent=False))
        self.partitioner = StickyPartitioner(SimRand(5), ROOM)
        self.available = list(range(partitions))

    def send(self) -> int:
        partition = self.partitioner.partition("t", 4, self.available)
        place = TopicPartition("t", partition)
        batch, _ = self.core.append(place, None, b"abcd", 1000, (), 0.0)
        self.partitioner.landed("t", batch)
        return partition

    def drain(self) -> None:
        for batch in self.core.drain(self.core.ready(10.0), 1 << 20, 10.0):
            self.core.answered(batch, BatchResponse(0, 0), 0.0)


def test_a_full_batch_sends_the_next_record_elsewhere() -> None:
    sender = Sender()
    places = [sender.send() for _ in range(30)]
    runs = [places[start : start + 3] for start in range(0, 30, 3)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(before[0] != after[0] for before, after in pairwise(runs))
    assert set(places) == {0, 1, 2, 3}


def test_a_batch_that_was_sent_does_too() -> None:
    sender = Sender()
    first = sender.send()
    assert sender.send() == first
    sender.drain()
    assert sender.send() != first


def test_a_single_partition_is_all_there_is() -> None:
    sender = Sender(partitions=1)
    assert {sender.send() for _ in range(10)} == {0}


def test_topics_have_their_own_place_and_are_forgotten_one_by_one() -> None:
    partitioner = StickyPartitioner(SimRand(1), ROOM)
    chosen = partitioner.partition("a", 4, range(1000))
    assert partitioner.partition("a", 4, range(1000)) == chosen
    assert partitioner.partition("b", 4, range(1000)) != chosen
    partitioner.forget("a")
    partitioner.forget("never seen")
    assert partitioner.partition("a", 4, [3]) == 3


def test_only_partitions_with_a_leader_are_chosen() -> None:
    partitioner = StickyPartitioner(SimRand(1), ROOM)
    for _ in range(10):
        assert partitioner.partition("a", 4, [2, 5]) in (2, 5)
        partitioner.forget("a")


@pytest.mark.parametrize(
    ("key", "java_hash"), [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)]
)
def test_keys_go_where_java_sends_them(key: bytes, java_hash: int) -> None:
    assert partition_for_key(key, 12) == (java_hash & 0x7FFFFFFF) % 12
