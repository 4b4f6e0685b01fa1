"""TODO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.door import door

if TYPE_CHECKING:
    from onceflow.client.session.batch import Batch as Batch
    from onceflow.client.session.transaction import SessionTransaction as SessionTransaction
else:
    __getattr__ = door(
        __name__,
        {
            "batch": "Batch",
            "transaction": "SessionTransaction",
        },
    )
