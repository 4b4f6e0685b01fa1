"""The error of a query, its cause first: Spark puts it behind thousands of characters of stacks.

`cause_of` finds it in what Spark tells; `without_stack` is how source and sink raise their own
errors, so that Spark has no stack to put before them. `is_source_gone` knows the one error that
says nothing of what happened: that the process is gone which plans the source's batches.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from onceflow.errors import OnceflowError
from onceflow.spark.errors.explanation import find_cause

P = ParamSpec("P")
T = TypeVar("T")

SOURCE_GONE: Final = (
    "the Python process in which Spark plans the batches of the source has ended (it was killed, "
    "or memory ran out); nothing is lost. Start the query again: it goes on from its checkpoint"
)
_GONE: Final = re.compile(
    r"java\.(?:net\.SocketException|io\.(?:EOFException|IOException))[^\n]*"
    r"(?:\n\s*at [^\n]*)*?\n\s*at [^\n]*\.PythonStreamingSourceRunner\."
)
_ANYWHERE: Final = Path("/")
_LONGEST: Final = 2000


def is_source_gone(error: BaseException) -> bool:
    """Whether the process that plans batches died, as Spark sees it: their connection broke."""
    return _GONE.search(_all_of(error)) is not None


def _all_of(error: Any) -> str:
    """The stacks of an error of Spark's and of its causes."""
    found: list[str] = []
    while error is not None and len(found) < 10:
        found.append(f"{getattr(error, '_stackTrace', '')}\n")
        error = getattr(error, "_cause", None)
    return "".join(found)


def cause_of(error: BaseException) -> str:
    """What happened, in a few lines; empty when the error does not say."""
    if is_source_gone(error):
        return SOURCE_GONE
    cause = find_cause(_text(error), _ANYWHERE)
    own = isinstance(error, OnceflowError)
    if cause is None:
        return f"{type(error).__name__}: {error}"[:_LONGEST] if own else ""
    where = f"\n  where: {cause.where}" if cause.where else ""
    what = f"{cause.kind}: {cause.text}{where}"[:_LONGEST]
    # What the sink says begins with what it tried: which batch, and how often.
    tried = str(error).partition(": ")[0] if own else ""
    return f"{what}\n  what failed: {tried}" if tried else what


def _text(error: Any) -> str:
    """Without the stack of the JVM that Spark adds where it is told to."""
    return str(getattr(error, "_desc", None) or error)


def without_stack(error: Exception) -> Exception:
    """The same error without its causes and the lines that it came through, for a caller that
    would put them before it."""
    try:
        made = copy.copy(error)
    except Exception:  # one that cannot be made anew
        return error
    return made if isinstance(made, type(error)) and str(made) == str(error) else error


def told_briefly(method: Callable[P, T]) -> Callable[P, T]:
    """For what Spark calls in a process of its own: errors that are raised on purpose come out with
    no more than their text."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except OnceflowError as error:
            raise without_stack(error) from None

    return call
