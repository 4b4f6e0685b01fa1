"""Numbers of Kafka's idempotence and transactions on which client and broker have to agree."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_IN_FLIGHT: Final = 5
"""A leader remembers this many batches of each producer in a partition: with more in flight, it
could not recognize a retried one as a duplicate."""
LAST_EPOCH: Final = 32767
"""The largest producer epoch: the one after it needs a new producer id."""
TRANSACTION_V2: Final = 2
"""The level of the feature `transaction.version` from which every transaction has its own epoch."""

# From these versions on the request itself says that it is of transaction version 2.
IMPLICIT_PRODUCE_FROM: Final = 12
"""A partition joins the transaction with its first Produce, without AddPartitionsToTxn."""
IMPLICIT_OFFSETS_FROM: Final = 5
"""A group joins the transaction with TxnOffsetCommit, without AddOffsetsToTxn."""
END_WITH_NEW_EPOCH_FROM: Final = 5
"""The response to EndTxn brings the epoch of the next transaction."""


class ProducerIdAndEpoch(NamedTuple):
    """Who a producer says it is: every sequence belongs to such a pair."""

    producer_id: int
    epoch: int

    @property
    def is_exhausted(self) -> bool:
        """No epoch is left that a client may have; the next one needs a new producer id."""
        return self.epoch >= LAST_EPOCH - 1
