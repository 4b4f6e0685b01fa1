"""A producer's transactions: the machine that knows what to ask next (`machine`, over the table in
`states`), what runs it on a cluster (`driver`, `ending`), and an open transaction as a value that
another process can take over (`handoff`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.transactions.driver import TransactionDriver as TransactionDriver
    from onceflow.client.transactions.ending import (
        MAY_ABORT as MAY_ABORT,
        TransactionEnds as TransactionEnds,
        Ways as Ways,
    )
    from onceflow.client.transactions.handoff import (
        Claim as Claim,
        OpenTransaction as OpenTransaction,
    )
    from onceflow.client.transactions.machine import (
        TransactionMachine as TransactionMachine,
        log_transaction as log_transaction,
    )
    from onceflow.client.transactions.retrier import (
        Operation as Operation,
        Reply as Reply,
        RequestAttempt as RequestAttempt,
        T as T,
    )
    from onceflow.client.transactions.states import (
        SENDS as SENDS,
        Meets as Meets,
        ProducerState as ProducerState,
        TransactionEvent as TransactionEvent,
        WrongState as WrongState,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "driver": "TransactionDriver",
            "ending": "MAY_ABORT TransactionEnds Ways",
            "handoff": "Claim OpenTransaction",
            "machine": "TransactionMachine log_transaction",
            "retrier": "Operation Reply RequestAttempt T",
            "states": "Meets ProducerState SENDS TransactionEvent WrongState",
        },
    )
