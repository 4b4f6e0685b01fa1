"""The client of a request, as far as a handler needs to know it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

from onceflow.errors import OnceflowError

T = TypeVar("T", bound=Hashable)


class RequestContext(NamedTuple):
    """The sender of one request."""

    version: int
    """The API version of the request; handlers see requests in the newest form."""
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
