"""How an error is shown: in words with a hint, or as JSON; always on standard error."""

from __future__ import annotations

import json
from typing import Any

import typer

from onceflow.cli.common.output import print_message

HINTS = {
    "BrokerUnreachable": (
        "start a broker with `onceflow serve`, or name a running one with --bootstrap HOST:PORT "
        "or the environment variable ONCEFLOW_BOOTSTRAP"
    ),
    "NotKafka": "check the port that --bootstrap names; `onceflow serve` prints the one it uses",
    "RequestTimedOut": "the broker is running but slow or stuck; check its log",
    "TopicNotFound": (
        "`onceflow topics list` shows all topics, `onceflow topics create NAME` makes one"
    ),
    "NoSuchPartition": "`onceflow topics describe NAME` shows the partitions",
    "GroupNotFound": "`onceflow groups list` shows all groups",
    "GroupNotEmpty": "`onceflow groups describe NAME` shows who is connected",
    "TransactionNotFound": (
        "`onceflow transactions list` shows all transactional ids, `onceflow transactions "
        "find-hanging` what hangs"
    ),
    "NotHanging": "`onceflow transactions abort ID` aborts it in all its partitions",
    "Fenced": (
        "another program uses the same --transactional-id, or has aborted the transaction; each "
        "program that runs needs an id of its own"
    ),
    "UnknownOutcome": "check what was committed before you send the input again",
    "DeliveryFailed": "send the missing records again; those that were acknowledged are there",
    "AuthenticationFailed": (
        "give the right sasl.mechanism, sasl.username and sasl.password with --set NAME=VALUE or "
        "--set @FILE"
    ),
    "TlsFailed": "check security.protocol and ssl.cafile, given with --set NAME=VALUE",
    "MESSAGE_TOO_LARGE": (
        "`onceflow topics alter NAME --config max.message.bytes=N` makes the topic take more"
    ),
    "INVALID_RECORD": "give each record a key: --key-separator, or the field key of JSON lines",
    "INVALID_TRANSACTION_TIMEOUT": "set a shorter one with --set transaction.timeout.ms=N",
    "TOPIC_ALREADY_EXISTS": "use --if-not-exists if that is no error",
    "INVALID_CONFIG": "`onceflow topics describe NAME --all-configs` shows settings with values",
    "OFFSET_OUT_OF_RANGE": (
        "start elsewhere with --from, or move the group with `onceflow groups reset-offsets`"
    ),
}
"""By the name of the error code, else by the name of the class."""


def hint_for(error: BaseException) -> str | None:
    """What to do about an error, if there is something to say; what a broker has said about the
    reason comes first."""
    refusal = _refusal(error)
    found = None if refusal is None else HINTS.get(refusal.name)
    return found or HINTS.get(type(error).__name__)


def _refusal(error: BaseException | None) -> Any:
    """The error of the protocol that this one is, or was raised from."""
    passed: set[int] = set()
    while error is not None and not (hasattr(error, "code") and hasattr(error, "api")):
        if id(error) in passed:
            return None  # errors that are each other's cause: Python lets programs do that
        passed.add(id(error))
        error = error.__cause__
    return error


def as_document(error: Any) -> dict[str, Any]:
    """An error as JSON; those of the protocol with their code."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    document: dict[str, Any] = {"type": type(error).__name__, "message": message}
    if (refusal := _refusal(error)) is not None:
        document |= {"code": refusal.code, "name": refusal.name, "api": refusal.api}
    if hasattr(error, "outcome"):
        document["outcome"] = error.outcome
    if hint := hint_for(error):
        document["hint"] = hint
    return {"error": document}


def report(error: Exception, *, as_json: bool) -> None:
    """Tells an error on standard error."""
    if as_json:
        typer.echo(json.dumps(as_document(error)), err=True)
        return
    print_message("error:", str(error), fg="red", bold=True)
    if hint := hint_for(error):
        print_message("hint:", hint, fg="cyan")
