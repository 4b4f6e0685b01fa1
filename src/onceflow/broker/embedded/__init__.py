"""`Broker`: a broker inside a program or a test, on a thread or in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.embedded.broker import Broker as Broker, BrokerMisused as BrokerMisused
    from onceflow.broker.embedded.hosts import (
        BrokerEnded as BrokerEnded,
        BrokerNotStarted as BrokerNotStarted,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "broker": "Broker BrokerMisused",
            "hosts": "BrokerEnded BrokerNotStarted",
        },
    )
