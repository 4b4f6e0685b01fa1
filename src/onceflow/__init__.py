"""Exactly-once streaming for Python and Spark.

`onceflow.Broker` is a broker for tests and small programs. It is loaded when it is asked for:
importing `onceflow` itself costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.broker.embedded.broker import Broker

__version__ = "0.1.0"
__all__ = ["Broker", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Broker":
        from onceflow.broker.embedded.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
