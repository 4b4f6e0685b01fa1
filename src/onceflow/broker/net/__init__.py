"""The broker's side of connections: frames in, answers out in order, and a fair share of memory and
descriptors for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.net.answer_memory import AnswerMemory as AnswerMemory
    from onceflow.broker.net.connection import Connection as Connection
    from onceflow.broker.net.descriptors import share_out as share_out
    from onceflow.broker.net.request_memory import (
        LOOK_SECONDS as LOOK_SECONDS,
        RequestMemory as RequestMemory,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "answer_memory": "AnswerMemory",
            "connection": "Connection",
            "descriptors": "share_out",
            "request_memory": "LOOK_SECONDS RequestMemory",
        },
    )
