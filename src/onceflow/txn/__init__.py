"""The transaction coordinator: pure decisions and the records they are a fold over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.txn.decisions import (
        Decision as Decision,
        Finish as Finish,
        Persist as Persist,
        Rejected as Rejected,
        Result as Result,
        TransactionLimits as TransactionLimits,
    )
    from onceflow.txn.ending import (
        COMPLETED as COMPLETED,
        NewProducerId as NewProducerId,
        fence as fence,
    )
    from onceflow.txn.fencing import code_for as code_for
    from onceflow.txn.initialising import ProducerIdRequest as ProducerIdRequest
    from onceflow.txn.records import (
        TransactionRecordMalformed as TransactionRecordMalformed,
        decode_key as decode_key,
        decode_value as decode_value,
        encode_key as encode_key,
        encode_value as encode_value,
        may_follow as may_follow,
    )
    from onceflow.txn.state import (
        TransactionMetadata as TransactionMetadata,
        TransactionState as TransactionState,
        check_successor as check_successor,
        moved as moved,
    )
    from onceflow.txn.timeouts import Deadlines as Deadlines, remaining_ms as remaining_ms
else:
    __getattr__ = door(
        __name__,
        {
            "decisions": "Decision Finish Persist Rejected Result TransactionLimits",
            "ending": "COMPLETED NewProducerId fence",
            "fencing": "code_for",
            "initialising": "ProducerIdRequest",
            "records": "TransactionRecordMalformed decode_key decode_value encode_key "
            "encode_value may_follow",
            "state": "TransactionMetadata TransactionState check_successor moved",
            "timeouts": "Deadlines remaining_ms",
        },
    )
