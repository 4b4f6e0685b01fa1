"""The producer: batches, partitions, idempotence, receipts, and transactions as blocks.
`idempotence` decides which batch may be sent, `sender` sends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.producer.batch import (
        Headers as Headers,
        ProducerBatch as ProducerBatch,
        RecordInvalid as RecordInvalid,
    )
    from onceflow.client.producer.metrics import ProducerMetrics as ProducerMetrics
    from onceflow.client.producer.producer import Producer as Producer
    from onceflow.client.producer.receipts import Receipt as Receipt, TableReceipt as TableReceipt
    from onceflow.client.producer.transaction import Transaction as Transaction
else:
    __getattr__ = door(
        __name__,
        {
            "batch": "Headers ProducerBatch RecordInvalid",
            "metrics": "ProducerMetrics",
            "producer": "Producer",
            "receipts": "Receipt TableReceipt",
            "transaction": "Transaction",
        },
    )
