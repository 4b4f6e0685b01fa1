"""Consume, transform, produce, exactly once: one transaction for the results of a poll's records
and for their offsets. `states` has the transitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.session.batch import Batch as Batch
    from onceflow.client.session.errors import (
        BatchRefused as BatchRefused,
        BatchUndone as BatchUndone,
        NoProgress as NoProgress,
        OffsetsForgotten as OffsetsForgotten,
        SessionError as SessionError,
        SessionFailed as SessionFailed,
        SessionFenced as SessionFenced,
        SessionForgotten as SessionForgotten,
    )
    from onceflow.client.session.session import Session as Session
    from onceflow.client.session.states import WrongStep as WrongStep
    from onceflow.client.session.transaction import SessionTransaction as SessionTransaction
else:
    __getattr__ = door(
        __name__,
        {
            "batch": "Batch",
            "errors": "BatchRefused BatchUndone NoProgress OffsetsForgotten "
            "SessionError SessionFailed SessionFenced SessionForgotten",
            "session": "Session",
            "states": "WrongStep",
            "transaction": "SessionTransaction",
        },
    )
