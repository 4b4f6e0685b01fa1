"""The broker's side of connections: frames in, answers out in order, and a fair share of memory and
descriptors for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.net.connection import (
        AcceptedConnection as AcceptedConnection,
        ConnectionSurroundings as ConnectionSurroundings,
    )
    from onceflow.broker.net.descriptors import share_out as share_out
    from onceflow.broker.net.memory import (
        LOOK_SECONDS as LOOK_SECONDS,
        AnswerMemory as AnswerMemory,
        RequestMemory as RequestMemory,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "connection": "AcceptedConnection ConnectionSurroundings",
            "descriptors": "share_out",
            "memory": "AnswerMemory LOOK_SECONDS RequestMemory",
        },
    )
