"""Who sent a request, as far as a handler may want to know."""

from __future__ import annotations

from typing import NamedTuple

from onceflow.errors import OnceflowError


class Client(NamedTuple):
    """The sender of one request."""

    version: int
    """Of the API, as the request was sent; handlers see requests in the newest form."""
    client_id: str
    host: str


class _NoAnswer:
    """See `NO_ANSWER`."""


NO_ANSWER = _NoAnswer()
"""What a handler returns for a request that is not answered: a Produce that wants no word of it."""


class Hangup(OnceflowError):
    """The connection has to end; the message says why."""
