"""TODO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.door import door

if TYPE_CHECKING:
    from onceflow.broker.embedded.broker import Broker as Broker
else:
    __getattr__ = door(
        __name__,
        {
            "broker": "Broker",
        },
    )
