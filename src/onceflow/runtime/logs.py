"""Onceflow's log, as lines for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Final, TextIO

_LONGEST_MESSAGE: Final = 8000
_MORE: Final = ("event", "fields", "numbers")


class TextFormatter(logging.Formatter):
    """`2026-11-15T12:00:00.000Z INFO  broker.server opened ...`"""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("onceflow.")
        line = f"{timestamp(record)} {level(record):<5} {name}: {message(record)}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message and, where there are any, what a broker
    has counted (`extra={"numbers": ...}`), what happened to a client (`event`, and its `fields` by
    name) and the exception.

    >>> import logging
    >>> record = logging.makeLogRecord({"name": "onceflow.client.groups", "msg": "joined"})
    >>> json.loads(JsonFormatter().format(record))["message"]
    'joined'
    """

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": timestamp(record),
            "level": level(record),
            "logger": record.name,
            "message": message(record),
        }
        for name in _MORE:
            if (more := getattr(record, name, None)) is not None:
                entry[name] = more
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def message(record: logging.LogRecord) -> str:
    """The record's text, cut to `_LONGEST_MESSAGE`: a client may send names of any length."""
    text = record.getMessage()
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "..."


def timestamp(record: logging.LogRecord) -> str:
    """UTC, to the millisecond."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def level(record: logging.LogRecord) -> str:
    """A level's name, at most five letters long."""
    return {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(record.levelname, record.levelname)


def log_to(stream: TextIO, *, level_name: str, log_format: str) -> None:
    """Sends Onceflow's log to a stream, from now on."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logger = logging.getLogger("onceflow")
    logger.handlers[:] = [handler]
    logger.setLevel(level_name.upper())
    logger.propagate = False
