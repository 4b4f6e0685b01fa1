"""`__transaction_state`: made when first needed, appended to by the coordinator, read at start."""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.broker.internal_topics import TRANSACTIONS_TOPIC
from onceflow.broker.metadata_log import log_records
from onceflow.broker.own_topic import OwnTopic
from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topics
from onceflow.log.journal import Ticket
from onceflow.log.urgency import Purpose
from onceflow.records.plain import PlainRecord, write_records
from onceflow.runtime.clock import Clock
from onceflow.txn.partitioner import partition_for
from onceflow.txn.records import decode_key, decode_value, encode_key, encode_value
from onceflow.txn.state import Transaction


class TransactionsTopic(OwnTopic):
    """The log of all transactional ids, as the coordinator sees it."""

    def __init__(self, topics: Topics, clock: Clock, partitions: int) -> None:
        super().__init__(topics, clock, TRANSACTIONS_TOPIC, partitions)

    def partition_of(self, transactional_id: str) -> Partition:
        """The partition that keeps an id."""
        partitions = self._topic().partitions
        return partitions[partition_for(transactional_id, len(partitions))]

    def append(
        self, transactional_id: str, transaction: Transaction | None, purpose: Purpose
    ) -> Ticket:
        """Writes what is now so of an id; None is that it is forgotten."""
        value = None if transaction is None else encode_value(transaction)
        record = PlainRecord(encode_key(transactional_id), value)
        batch = write_records([record], self._clock.wall_ms())
        return self.partition_of(transactional_id).append(batch, purpose=purpose)[1]

    def replay(self) -> Iterator[tuple[str, Transaction | None]]:
        """What was written last of each id. Most records are outdated, and never decoded: an id
        has three of each of its transactions until they are compacted."""
        for partition in self._to_replay():
            latest = {record.key or b"": record.value for record in log_records(partition.log)}
            for key, value in latest.items():
                transactional_id = decode_key(key)
                if transactional_id is not None:  # else a kind of record that is not known here
                    yield (
                        transactional_id,
                        None if value is None else decode_value(transactional_id, value),
                    )
