"""The producer for programs without asyncio: the same names, and every call blocks.

Records that one thread sends to a partition keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceflow.blocking.receipts import promising
from onceflow.blocking.twin import Twin, blocking, plain
from onceflow.client import producer as twin
from onceflow.client.prepared import PreparedTransaction
from onceflow.client.producer_metrics import ProducerMetrics
from onceflow.client.transaction import Transaction as TwinTransaction
from onceflow.client.txn_states import State


class Producer(Twin[twin.Producer]):
    """Settings go by Kafka's names, in a mapping with dots or as keywords with underscores.

    >>> with Producer(bootstrap) as producer:
    ...     receipt = producer.send("orders", b"paid", key=b"42")
    ...     print(receipt.result().offset)
    0
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        settings: Mapping[str, object] | None = None,
        **named: object,
    ) -> None:
        super().__init__(twin.Producer(bootstrap, {**(settings or {}), **named}))

    send = promising(twin.Producer.send)
    send_table = promising(twin.Producer.send_table)
    partitions_for = blocking(twin.Producer.partitions_for)
    flush = blocking(twin.Producer.flush)
    metrics = plain(twin.Producer.metrics)

    init_transactions = blocking(twin.Producer.init_transactions)
    begin_transaction = blocking(twin.Producer.begin_transaction)
    send_offsets_to_transaction = blocking(twin.Producer.send_offsets_to_transaction)
    commit_transaction = blocking(twin.Producer.commit_transaction)
    abort_transaction = blocking(twin.Producer.abort_transaction)
    prepare_transaction = blocking(twin.Producer.prepare_transaction)
    complete_transaction = blocking(twin.Producer.complete_transaction)
    open_transaction = blocking(twin.Producer.open_transaction)

    @property
    def measured(self) -> ProducerMetrics:
        """What was counted, one by one; `metrics` is all at once."""
        return self._client.measured

    @property
    def prepared(self) -> PreparedTransaction:
        """The name of what is prepared; empty, and false, when nothing is."""
        return self._client.prepared

    @property
    def state(self) -> State:
        """Where a transactional producer is."""
        return self._client.state

    def transaction(self) -> Transaction:
        """One transaction, for `with`: committed at its end, aborted when it is left by an
        exception. The first one takes over the transactional id."""
        return Transaction(self._client.transaction(), self)


class Transaction(Twin[TwinTransaction]):
    """Made by `Producer.transaction`; used once.

    >>> with Producer(bootstrap, transactional_id="shop") as producer:
    ...     with producer.transaction() as transaction:
    ...         receipt = transaction.send("orders", b"paid")
    ...     print(receipt.result().offset, producer.state.name)
    0 READY
    """

    def __init__(self, client: TwinTransaction, producer: Producer) -> None:
        super().__init__(client, producer._loop)

    send = promising(TwinTransaction.send)
    send_table = promising(TwinTransaction.send_table)
    send_offsets = blocking(TwinTransaction.send_offsets)
