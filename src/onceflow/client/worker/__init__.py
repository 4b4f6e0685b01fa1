"""The client for processes that Spark forks: blocking, without an event loop or a thread, and quick
to import. It writes under a transaction that another process began, and reads exact ranges of
offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.worker.cluster import BlockingCluster as BlockingCluster
    from onceflow.client.worker.hanging_transactions import (
        find_hanging_transactions as find_hanging_transactions,
        offsets_partitions as offsets_partitions,
    )
    from onceflow.client.worker.reader import BlockingReader as BlockingReader, Range as Range
    from onceflow.client.worker.transaction_client import TransactionClient as TransactionClient
    from onceflow.client.worker.writer import BlockingWriter as BlockingWriter
else:
    __getattr__ = door(
        __name__,
        {
            "cluster": "BlockingCluster",
            "hanging_transactions": "find_hanging_transactions offsets_partitions",
            "reader": "BlockingReader Range",
            "transaction_client": "TransactionClient",
            "writer": "BlockingWriter",
        },
    )
