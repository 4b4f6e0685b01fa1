"""`__transaction_state`: made when first needed, appended to by the coordinator, read at start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onceflow.broker.topics import (
    TRANSACTIONS_TOPIC,
    HostedPartition,
    InternalTopic,
    Topics,
    Unapplied,
    log_records,
)
from onceflow.errors import InvariantViolated, NewerRecord, RecordError
from onceflow.log import Purpose, Ticket
from onceflow.records import PlainRecord, coordinator_partition, write_records
from onceflow.runtime import Clock
from onceflow.txn import (
    TransactionMetadata,
    TransactionRecordMalformed,
    check_successor,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    may_follow,
)

_UNAPPLICABLE: Final = (RecordError, InvariantViolated)


class TransactionsTopic(InternalTopic):
    """The log of all transactional ids, as the coordinator sees it."""

    def __init__(self, topics: Topics, clock: Clock, partitions: int) -> None:
        super().__init__(topics, clock, TRANSACTIONS_TOPIC, partitions)

    def ensure_partition(self, transactional_id: str) -> HostedPartition:
        """The partition that keeps an id."""
        partitions = self._topic().partitions
        return partitions[coordinator_partition(transactional_id, len(partitions))]

    def append(
        self, transactional_id: str, transaction: TransactionMetadata | None, purpose: Purpose
    ) -> Ticket:
        """Writes what is now so of an id; None is that it is forgotten."""
        value = None if transaction is None else encode_value(transaction)
        record = PlainRecord(encode_key(transactional_id), value)
        batch = write_records([record], self._clock.wall_ms())
        return self.ensure_partition(transactional_id).append(batch, purpose=purpose)[1]

    def replay(self, unapplied: Unapplied) -> dict[str, TransactionMetadata]:
        """What was written last of each id, as far as it can be applied."""
        found: dict[str, TransactionMetadata] = {}
        for partition in self._to_replay():
            states = self._fold(partition)
            if states is None:
                states = self._fold_closely(partition, unapplied)
            found.update((each.transactional_id, each) for each in states)
        unapplied.tell()
        return found

    def _fold(self, partition: HostedPartition) -> Iterable[TransactionMetadata] | None:
        """Most records are outdated, and never decoded: an id has three of each of its transactions
        until they are compacted. None where something is wrong with any of them."""
        latest: dict[bytes, bytes | None] = {}
        try:
            for key, value in log_records(partition.log):
                before = latest.get(key or b"")
                if before is not None and not may_follow(before, value):
                    return None
                latest[key or b""] = value
            return [
                self._read(partition, key, value)
                for key, value in latest.items()
                if value is not None
            ]
        except _UNAPPLICABLE:
            return None

    def _fold_closely(
        self, partition: HostedPartition, unapplied: Unapplied
    ) -> Iterable[TransactionMetadata]:
        """Record by record. What cannot be applied leaves the id in the state before it."""
        latest: dict[bytes, TransactionMetadata | None] = {}
        newer: dict[bytes, tuple[int, NewerRecord]] = {}
        for at, (key, value) in self._placed_records(partition, unapplied):
            known = key or b""
            try:
                state = None if value is None else self._read(partition, known, value)
                check_successor(latest.get(known), state)
            except NewerRecord as error:
                newer[known] = at, error  # until a later one of the same id makes up for it
            except _UNAPPLICABLE as error:
                unapplied.add(partition.index, at, error)
            else:
                latest[known] = state
                newer.pop(known, None)
        for at, reason in newer.values():
            unapplied.add(partition.index, at, reason)
        return [each for each in latest.values() if each is not None]

    def _read(self, partition: HostedPartition, key: bytes, value: bytes) -> TransactionMetadata:
        transactional_id = decode_key(key)
        belongs = coordinator_partition(transactional_id, self.partition_count)
        if belongs != partition.index:
            raise TransactionRecordMalformed(
                f"transactional id {transactional_id!r} belongs to partition {belongs}"
            )
        transaction = decode_value(transactional_id, value)
        check_successor(None, transaction)
        return transaction
