"""Who sent a request, as far as a handler may want to know."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

from onceflow.errors import OnceflowError

T = TypeVar("T", bound=Hashable)


class RequestContext(NamedTuple):
    """The sender of one request."""

    version: int
    """Of the API, as the request was sent; handlers see requests in the newest form."""
    client_id: str
    host: str


class _NoAnswer:
    """See `NO_ANSWER`."""


NO_ANSWER = _NoAnswer()
"""What a handler returns for a request that is not answered: a Produce that wants no word of it."""


def once_each(asked: Iterable[T]) -> tuple[T, ...]:
    """What is asked for, without repetitions: a name takes a few bytes and what there is to tell of
    it thousands, so that a request could ask for more than there is memory by repeating one."""
    return tuple(dict.fromkeys(asked))


class Hangup(OnceflowError):
    """The connection has to end; the message says why."""
