"""The client for programs that do not use asyncio: the same names, and every call blocks.

    from onceflow.blocking import Admin, Consumer, Producer, Session

A client is a thread of its own, which sends while the program does something else; any number of
threads may use it. It does not survive a fork: make one in the child.
"""

from __future__ import annotations

from onceflow.blocking.admin import Admin
from onceflow.blocking.consumer import Consumer, RebalanceListener
from onceflow.blocking.loop import NotRunning
from onceflow.blocking.producer import Producer, Transaction
from onceflow.blocking.receipts import Receipt
from onceflow.blocking.session import Session, SessionTransaction

__all__ = [
    "Admin",
    "Consumer",
    "NotRunning",
    "Producer",
    "RebalanceListener",
    "Receipt",
    "Session",
    "SessionTransaction",
    "Transaction",
]
