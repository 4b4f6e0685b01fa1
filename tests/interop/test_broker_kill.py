"""kill -9 of the broker under load of clients that others wrote: nothing acknowledged is lost."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from onceflow import Broker
from onceflow.cli.demo_clients import PARTITIONS, TOPIC, find_client
from onceflow.cli.demo_load import Load
from tests.kill.scenario import kill_under_load, wait

SECONDS = 20.0


@pytest.mark.parametrize(
    ("package", "durability", "kills"),
    [("confluent-kafka", "fsync", 3), ("confluent-kafka", "os", 2), ("aiokafka", "fsync", 2)],
)
def test_all_that_was_acknowledged_is_where_it_was(
    package: str, durability: str, kills: int, record_property: pytest.RecordProperty
) -> None:
    outcome = kill_under_load(find_client(package), durability, kills, seed=kills)
    for kill in outcome.kills:
        record_property("restart_seconds", round(kill.restart_seconds, 3))
    assert len(outcome.kills) == kills
    assert all(kill.in_flight for kill in outcome.kills)
    assert outcome.verdict.acknowledged > 0
    assert outcome.verdict.is_good, f"{outcome.verdict}\n{outcome.log_text}"


class Committer:
    """Commits ever higher offsets of a group, on a thread, and keeps those that were answered."""

    def __init__(self, bootstrap: str) -> None:
        self.consumer = group_consumer(bootstrap)
        self.answered = 0
        self._is_wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._is_wanted.set()
        self._thread.start()

    def stop(self) -> None:
        self._is_wanted.clear()
        self._thread.join()
        self.consumer.close()

    def _run(self) -> None:
        while self._is_wanted.is_set():
            offset = self.answered + 1
            rows = [TopicPartition(TOPIC, each, offset) for each in range(PARTITIONS)]
            try:
                committed = self.consumer.commit(offsets=rows, asynchronous=False)
            except KafkaException:
                continue  # no answer: the broker is gone; the same offset is tried again
            if all(row.error is None for row in committed):
                self.answered = offset


def group_consumer(bootstrap: str) -> Any:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "bookkeeping", "log_level": 0})


def test_committed_offsets_survive() -> None:
    client = find_client("confluent-kafka")
    with Broker(process=True, num_partitions=PARTITIONS) as broker:
        load = Load(client, broker.bootstrap)
        load.start()
        wait(load, lambda: len(load.acknowledged) > 1000)
        committer = Committer(broker.bootstrap)
        committer.start()
        for _ in range(2):
            goal = committer.answered + 20
            wait(load, lambda goal=goal: committer.answered >= goal)
            broker.kill()
            answered = committer.answered
            broker.restart()
            reader = group_consumer(broker.bootstrap)
            asked = [TopicPartition(TOPIC, each) for each in range(PARTITIONS)]
            rows = reader.committed(asked, timeout=SECONDS)
            reader.close()
            assert all(row.offset >= answered > 0 for row in rows)
        committer.stop()
        load.stop()
