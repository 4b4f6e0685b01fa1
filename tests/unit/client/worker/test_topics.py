"""A blocking writer that comes to another topic when much is under way already."""

from __future__ import annotations

import pyarrow as pa

import onceflow
from onceflow.blocking import Admin, Producer
from onceflow.client.worker.writer import BlockingWriter
from onceflow.types import TopicPartition


def test_another_topic_can_be_asked_about_while_batches_are_under_way() -> None:
    """As that of dead letters, of which the first may come behind megabytes of other rows."""
    places = [TopicPartition("many", 0), TopicPartition("few", 0)]
    rows = pa.table({"value": [bytes(1000)] * 1500})
    with onceflow.Broker() as broker, Admin(broker.bootstrap) as admin:
        for topic in ("many", "few"):
            admin.create_topic(topic, partitions=1)
        with (
            Producer(broker.bootstrap, transactional_id="shop") as producer,
            producer.transaction(),
            BlockingWriter(producer.open_transaction(places)) as writer,
        ):
            for _ in range(4):
                writer.write("many", 0, rows)
            writer.write("few", 0, rows)
            assert [each.records for each in writer.flush()] == [1500, 6000]
