"""What a batch has to fulfil before it is appended, and the producers that partitions remember."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.produce.batch import (
        LOG_APPEND_TIME as LOG_APPEND_TIME,
        Effort as Effort,
        HeavyBatch as HeavyBatch,
        checked_batch as checked_batch,
    )
    from onceflow.broker.produce.heavy_batches import (
        BatchChecks as BatchChecks,
        HeavyRecords as HeavyRecords,
        altered_meanwhile as altered_meanwhile,
    )
    from onceflow.broker.produce.idempotence import admit_batch as admit_batch
    from onceflow.broker.produce.producer_expiry import ProducerExpiry as ProducerExpiry
else:
    __getattr__ = door(
        __name__,
        {
            "batch": "Effort HeavyBatch LOG_APPEND_TIME checked_batch",
            "heavy_batches": "BatchChecks HeavyRecords altered_meanwhile",
            "idempotence": "admit_batch",
            "producer_expiry": "ProducerExpiry",
        },
    )
