"""The transaction coordinator: ids and their transactions (`state_store`), markers, and producer
ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.txn.coordinator import TransactionService as TransactionService
    from onceflow.broker.txn.markers import Markers as Markers
    from onceflow.broker.txn.producer_ids import ProducerIds as ProducerIds
    from onceflow.broker.txn.state_store import (
        TransactionDependencies as TransactionDependencies,
        TransactionStateStore as TransactionStateStore,
    )
    from onceflow.broker.txn.topic import TransactionsTopic as TransactionsTopic
    from onceflow.broker.txn.unclean_stop import repair as repair
else:
    __getattr__ = door(
        __name__,
        {
            "coordinator": "TransactionService",
            "markers": "Markers",
            "producer_ids": "ProducerIds",
            "state_store": "TransactionDependencies TransactionStateStore",
            "topic": "TransactionsTopic",
            "unclean_stop": "repair",
        },
    )
