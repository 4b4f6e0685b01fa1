"""What a client logs while a command runs, as notes to the user who waits for it.

One note says that a broker is gone, one that it is back. What a command raises as an error gets no
note: the error says it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from onceflow.cli.common.output import warn

_CLIENT: Final = "onceflow.client"
_CONNECTIONS: Final = "onceflow.client.connections"
_TOLD: Final = ("onceflow.client.groups", "onceflow.client.reading")


class _Notes(logging.Handler):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__(logging.INFO)
        self._as_json = as_json
        self._gone: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == _CONNECTIONS:
            fields: dict[str, Any] = getattr(record, "fields", {})
            self._connection(record, str(fields.get("address")))
        elif record.name in _TOLD and record.levelno == logging.WARNING:
            warn(record.getMessage(), as_json=self._as_json)

    def _connection(self, record: logging.LogRecord, address: str) -> None:
        event = getattr(record, "event", None)
        if event == "connected" and address in self._gone:
            self._gone.discard(address)
            warn(f"connected to {address} again", as_json=self._as_json)
        elif record.levelno == logging.WARNING and address not in self._gone:
            self._gone.add(address)
            warn(f"{record.getMessage()}; trying again", as_json=self._as_json)


@contextmanager
def client_notes(*, as_json: bool) -> Iterator[None]:
    """For the time of one command."""
    client, connections = logging.getLogger(_CLIENT), logging.getLogger(_CONNECTIONS)
    notes, level = _Notes(as_json=as_json), connections.level
    client.addHandler(notes)
    connections.setLevel(logging.INFO)
    try:
        yield
    finally:
        client.removeHandler(notes)
        connections.setLevel(level)


@contextmanager
def no_connection_notes() -> Iterator[None]:
    """For a command that takes brokers away itself, and tells of it in its own words."""
    connections = logging.getLogger(_CONNECTIONS)
    before, connections.disabled = connections.disabled, True
    try:
        yield
    finally:
        connections.disabled = before
