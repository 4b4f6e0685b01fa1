"""Leader epochs: one, until records may have been lost; then readers can find out it."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

import onceflow
from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection


def produce(bootstrap: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(20) == 0


def read(consumer: Consumer) -> bytes | None:
    message = consumer.poll(20)
    assert message is not None
    return message.value()


def end_of_epoch(bootstrap: str, epoch: int) -> tuple[int, int]:
    with RawConnection(bootstrap) as client:
        topic = {
            "topic": "orders",
            "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}],
        }
        answer = client.ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": [topic]}
        )
    (found,) = answer["topics"][0]["partitions"]
    return found["leader_epoch"], found["end_offset"]


def test_a_kill_without_syncs_begins_a_new_epoch_and_readers_go_on(tmp_path: Path) -> None:
    with onceflow.Broker(process=True, data_dir=tmp_path, durability="os") as broker:
        produce(broker.bootstrap, ["a", "b"])
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert [read(consumer) for _ in range(2)] == [b"a", b"b"]
        broker.kill()
        broker.restart()
        produce(broker.bootstrap, ["c"])
        assert end_of_epoch(broker.bootstrap, 0) == (0, 2)
        assert end_of_epoch(broker.bootstrap, 1) == (1, 3)
        assert read(consumer) == b"c"
        consumer.close()


def test_a_kill_with_syncs_loses_nothing_and_keeps_the_epoch(tmp_path: Path) -> None:
    with onceflow.Broker(process=True, data_dir=tmp_path) as broker:
        produce(broker.bootstrap, ["a", "b"])
        broker.kill()
        broker.restart()
        assert end_of_epoch(broker.bootstrap, 0) == (0, 2)
        assert end_of_epoch(broker.bootstrap, 1) == (-1, -1)
