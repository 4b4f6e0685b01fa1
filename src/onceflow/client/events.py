"""What a client logs: events with a name and fields, one logger for each part of the client.

The message is for people; `record.event` and `record.fields` are for machines, and are plain values
that can be written as JSON. Ordinary events are DEBUG; those that an operator wants to know are
INFO; those that may cost something are WARNING. There is no event for a single record, and a
failure that repeats is INFO once a minute, else DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

_QUIET_S: Final = 60.0
_CALLER: Final = 3


class EventLogger:
    """The logger of one part of the client. The message may name fields, as in `%(group)r`."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"onceflow.client.{name}")

    def wants(self, level: int) -> bool:
        """Whether anybody does, for fields that take some work."""
        return self._logger.isEnabledFor(level)

    def tell(self, level: int, event: str, message: str, **fields: object) -> None:
        """One event; no text is made for one that no handler wants."""
        self._tell(level, event, message, fields)

    def debug(self, event: str, message: str, **fields: object) -> None:
        self._tell(logging.DEBUG, event, message, fields)

    def info(self, event: str, message: str, **fields: object) -> None:
        self._tell(logging.INFO, event, message, fields)

    def warning(self, event: str, message: str, **fields: object) -> None:
        self._tell(logging.WARNING, event, message, fields)

    def error(self, event: str, message: str, **fields: object) -> None:
        self._tell(logging.ERROR, event, message, fields)

    def _tell(self, level: int, event: str, message: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            more = {"event": event, "fields": fields}
            self._logger.log(level, message, fields, extra=more, stacklevel=_CALLER)


CONNECTIONS: Final = EventLogger("connections")
REQUESTS: Final = EventLogger("requests")
PRODUCING: Final = EventLogger("producing")
TRANSACTIONS: Final = EventLogger("transactions")
READING: Final = EventLogger("reading")
GROUPS: Final = EventLogger("groups")


class Recurring:
    """Of things that happen again and again the first is news, and those soon after are not."""

    __slots__ = ("_quiet_until",)

    def __init__(self) -> None:
        self._quiet_until: dict[object, float] = {}

    def level(self, what: object, now: float, first: int = logging.INFO) -> int:
        """`first` once a minute for each of them, else DEBUG."""
        if now < self._quiet_until.get(what, now):
            return logging.DEBUG
        self._quiet_until[what] = now + _QUIET_S
        return first


class Names(tuple[str, ...]):
    """A list in JSON, and words in a message."""

    __slots__ = ()

    @classmethod
    def of(cls, things: Iterable[object]) -> Names:
        return cls(map(str, things))

    def __str__(self) -> str:
        return ", ".join(self) or "none"
