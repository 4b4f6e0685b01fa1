"""What a client may write to the topics in which the broker keeps its own state: only what can be
read again. A start reads all of them, and refuses the data directory at a record that is none.
"""

from __future__ import annotations

from onceflow.broker.internal_topics import OFFSETS_TOPIC
from onceflow.group import records as group_records
from onceflow.group.records import GroupKey, OffsetKey
from onceflow.records.batch import NewBatch, StoredBatch
from onceflow.records.plain import PlainRecord, read_records
from onceflow.txn import records as transaction_records


def check_own_records(topic: str, batch: NewBatch) -> None:
    """Raises a `RecordError` where a record of the batch could not be read at a start."""
    read = _read_offsets_record if topic == OFFSETS_TOPIC else _read_transaction_record
    for record in read_records(StoredBatch(*batch)):
        read(record)


def _read_offsets_record(record: PlainRecord) -> None:
    about = group_records.decode_key(record.key or b"")
    if record.value is None:
        return
    if isinstance(about, OffsetKey):
        group_records.decode_offset(record.value)
    elif isinstance(about, GroupKey):
        group_records.decode_group(record.value)


def _read_transaction_record(record: PlainRecord) -> None:
    transactional_id = transaction_records.decode_key(record.key or b"")
    if transactional_id is not None and record.value is not None:
        transaction_records.decode_value(transactional_id, record.value)
