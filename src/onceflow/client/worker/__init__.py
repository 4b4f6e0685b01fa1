"""The client for processes that Spark forks: blocking, without an event loop or a thread, and quick
to import. Writes under a transaction that was begun elsewhere, and reads exact ranges of
offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.worker.cluster import BlockingCluster as BlockingCluster
    from onceflow.client.worker.hanging_transactions import (
        LeftOpen as LeftOpen,
        find_left_open as find_left_open,
        places_of_groups as places_of_groups,
    )
    from onceflow.client.worker.reader import Range as Range, Reader as Reader
    from onceflow.client.worker.transaction_client import Finisher as Finisher
    from onceflow.client.worker.writer import Writer as Writer
else:
    __getattr__ = door(
        __name__,
        {
            "cluster": "BlockingCluster",
            "hanging_transactions": "LeftOpen find_left_open places_of_groups",
            "reader": "Range Reader",
            "transaction_client": "Finisher",
            "writer": "Writer",
        },
    )
