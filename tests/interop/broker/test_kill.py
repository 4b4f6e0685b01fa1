"""kill -9 of the broker under load of clients that others wrote: nothing acknowledged is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceflow import Broker
from tests.kill.payment_clients import PARTITIONS, TOPIC, find_client
from tests.kill.payment_load import Load
from tests.kill.scenario import kill_under_load, wait

SECONDS = 20.0
BOOKS = 20


@pytest.mark.parametrize(
    ("package", "durability", "kills"),
    [("confluent-kafka", "fsync", 3), ("confluent-kafka", "os", 2), ("aiokafka", "fsync", 2)],
)
def test_all_that_was_acknowledged_is_where_it_was(
    package: str, durability: str, kills: int, record_property: Callable[[str, object], None]
) -> None:
    outcome = kill_under_load(find_client(package), durability, kills, seed=kills)
    for kill in outcome.kills:
        record_property("restart_seconds", round(kill.restart_seconds, 3))
    assert len(outcome.kills) == kills
    assert all(kill.in_flight for kill in outcome.kills)
    assert outcome.verdict.acknowledged > 0
    assert outcome.verdict.is_good, f"{outcome.verdict}\n{outcome.log_text}"


def cut_segments(broker: Broker) -> None:
    """What a power cut may do to data that were never synced."""
    for segment in broker.data_dir.glob(f"{TOPIC}-*/*.log"):
        os.truncate(segment, segment.stat().st_size // 2)


@pytest.mark.parametrize(("durability", "is_good"), [("os", False), ("fsync", True)])
def test_a_loss_would_be_noticed_and_the_journal_makes_up_for_it(
    durability: str, is_good: bool
) -> None:
    client = find_client("confluent-kafka")
    outcome = kill_under_load(client, durability, 1, seed=3, while_away=cut_segments)
    assert outcome.verdict.is_good == is_good
    assert (outcome.verdict.lost == 0) == is_good


class Committer:
    """Commits rising offsets, each to one partition of many in turn, until it is told to end.

    `answered` holds what the broker said is committed; at most one attempt is without an answer.
    """

    def __init__(self, consumer: Any, first: int) -> None:
        self._consumer = consumer
        self._is_wanted = threading.Event()
        self._is_wanted.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.attempted = first
        self.answered: dict[int, int] = {}
        self._thread.start()

    def end_after_this_one(self) -> None:
        self._is_wanted.clear()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while self._is_wanted.is_set():
            self.attempted += 1
            partition = self.attempted % BOOKS
            row = TopicPartition("books", partition, self.attempted)
            with suppress(KafkaException):  # no answer: the broker is gone
                (said,) = self._consumer.commit(offsets=[row], asynchronous=False)
                if said.error is None:
                    self.answered[partition] = self.attempted


def committed(consumer: Any) -> dict[int, int]:
    asked = [TopicPartition("books", each) for each in range(BOOKS)]
    return {row.partition: row.offset for row in consumer.committed(asked, timeout=SECONDS)}


def make_books(bootstrap: str) -> Any:
    """A topic to commit offsets of, and a consumer of a group to do it with."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("books", BOOKS)])["books"].result(SECONDS)
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "bookkeeping", "log_level": 0})


def test_committed_offsets_survive() -> None:
    client = find_client("confluent-kafka")
    with Broker(process=True, num_partitions=PARTITIONS) as broker:
        load = Load(client, broker.bootstrap)
        load.start()
        consumer = make_books(broker.bootstrap)
        first = 0
        for _ in range(2):
            committer = Committer(consumer, first)
            wait(load, partial(has_answers, committer, first + BOOKS + 10))
            broker.kill()
            committer.end_after_this_one()
            answered, in_doubt = dict(committer.answered), committer.attempted
            broker.restart()
            committer.join()
            found = committed(consumer)
            for partition, offset in answered.items():
                in_flight = {in_doubt} if partition == in_doubt % BOOKS else set()
                assert found[partition] in {offset} | in_flight
            first = committer.attempted
        consumer.close()
        load.stop()


def has_answers(committer: Committer, count: int) -> bool:
    return bool(committer.answered) and max(committer.answered.values()) >= count
