"""How an error is told: in words with a hint, or as JSON; always on standard error."""

from __future__ import annotations

import json
from typing import Any

import typer

HINTS = {
    "BrokerUnreachable": (
        "start a broker with `onceflow serve`, or name a running one with --bootstrap HOST:PORT "
        "or the environment variable ONCEFLOW_BOOTSTRAP"
    ),
    "NotKafka": "check the port that --bootstrap names; `onceflow serve` prints the one it uses",
    "RequestTimedOut": "the broker is there but slow or stuck; look at its log",
    "TopicNotFound": (
        "`onceflow topics list` shows all topics, `onceflow topics create NAME` makes one"
    ),
    "NoSuchPartition": "`onceflow topics describe NAME` shows the partitions",
    "GroupNotFound": "`onceflow groups list` shows all groups",
    "GroupNotEmpty": "`onceflow groups describe NAME` shows who is connected",
    "TOPIC_ALREADY_EXISTS": "with --if-not-exists that is no error",
    "INVALID_CONFIG": "`onceflow topics describe NAME --all-configs` shows settings with values",
    "OFFSET_OUT_OF_RANGE": (
        "start elsewhere with --from, or move the group with `onceflow groups reset-offsets`"
    ),
}
"""By the name of the error code, else by the name of the class."""


def hint_for(error: Exception) -> str | None:
    """What to do about an error, if there is something to say."""
    return HINTS.get(str(getattr(error, "name", ""))) or HINTS.get(type(error).__name__)


def as_document(error: Any) -> dict[str, Any]:
    """An error as JSON; those of the protocol with their code."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    document: dict[str, Any] = {"type": type(error).__name__, "message": message}
    if hasattr(error, "code") and hasattr(error, "api"):
        document |= {"code": error.code, "name": error.name, "api": error.api}
    if hint := hint_for(error):
        document["hint"] = hint
    return {"error": document}


def report(error: Exception, *, as_json: bool) -> None:
    """Tells an error on standard error."""
    if as_json:
        typer.echo(json.dumps(as_document(error)), err=True)
        return
    typer.echo(typer.style("error: ", fg="red", bold=True) + str(error), err=True)
    if hint := hint_for(error):
        typer.echo(typer.style("hint:  ", fg="cyan") + hint, err=True)
