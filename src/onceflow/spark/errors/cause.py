"""The error of a query, its cause first: Spark puts it behind thousands of characters of stacks.

`cause_of` finds it in what Spark tells; `without_stack` is how source and sink raise their own
errors, so that Spark has no stack to put before them. `is_source_gone` knows the one error that
says nothing of what happened: that the process is gone which plans the source's batches.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from onceflow.errors import OnceflowError
from onceflow.spark.errors.pipeline import PipelineFailed

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
    """Without the stack of the JVM that Spark adds where its settings say so."""
    return str(getattr(error, "_desc", None) or error)


def without_stack(error: Exception) -> Exception:
    """The same error without its causes and the lines that it came through, for a caller that
    would put them before it."""
    try:
        made = copy.copy(error)
    except Exception:  # one that cannot be made anew
        return error
    return made if isinstance(made, type(error)) and str(made) == str(error) else error


def raises_briefly(method: Callable[P, T]) -> Callable[P, T]:
    """For what Spark calls in a process of its own: errors that are raised on purpose come out with
    no more than their text."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except OnceflowError as error:
            raise without_stack(error) from None

    return call


# --- explaining it -------------------------------------------------------------------------------


_TRACEBACK: Final = "Traceback (most recent call last):"
_SQL_STATE: Final = " SQLSTATE: "
"""Begins a line that Spark adds."""
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
_LIBRARY: Final = re.compile(
    r"/lib(?:64)?/(?:python|pypy)3[^/]*/|/(?:site|dist)-packages/|/(?:pyspark|py4j[^/]*)\.zip/"
)
"""Files of Python itself and of installed packages, on any machine; by their names, because a
project may live in the very directory that its Python is in."""
_OWN: Final = Path(__file__).resolve().parents[2]
_RAISED: Final = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$", re.DOTALL)
_CONDITION: Final = re.compile(
    r"\[(?P<name>[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] (?P<text>.*?)"
    r"(?= SQLSTATE: |;\n|\n\tat |\n\n|\Z)",
    re.DOTALL,
)
_PLACE_IN_SQL: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_AROUND: Final = frozenset({"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR"})
"""Conditions that only say that there was another."""
RAISED: Final = "USER_RAISED_EXCEPTION"
"""What a row raises that cannot be used."""

_ADVICE: Final[Mapping[str, str]] = {
    RAISED: ("add [dead_letters] with a topic for such records, or correct format and schema"),
    "UNRESOLVED_COLUMN": "look at the names in schema; _key, _topic, _partition, _offset and "
    "_timestamp are there too",
    "TABLE_OR_VIEW_NOT_FOUND": "the table is called source, or by the name of its [source.NAME]",
    "PARSE_SYNTAX_ERROR": "correct the SQL",
    "DATA_SOURCE_NOT_FOUND": "the Python that Spark starts has no Onceflow: install it there, or "
    "set PYSPARK_PYTHON to one that has it before Spark is started",
    "ModuleNotFoundError": "install it in the Python that PYSPARK_PYTHON names, on every machine",
    "DataLost": "set options = { failOnDataLoss = false } in [source] to go on without them",
    "SinkFenced": "stop the other program, or give this pipeline another name and checkpoint",
    "BrokerUnreachable": "start the broker, or correct source.bootstrap",
}


class Cause(NamedTuple):
    """The innermost error in a text."""

    kind: str
    """The class of a Python exception, or the name of Spark's condition."""
    text: str
    where: str


def explain(error: BaseException, base: Path, where: str = "") -> OnceflowError:
    """The error as a user should see it. Those that Onceflow has raised on purpose stay."""
    if isinstance(error, OnceflowError) and not _has_trace(str(error)):
        return error
    cause = find_cause(str(error), base) or Cause(type(error).__name__, str(error), "")
    family = cause.kind.partition(".")[0]
    text = cause.text if family.isupper() or not cause.text else f"{cause.kind}: {cause.text}"
    return PipelineFailed(_short(text or cause.kind), cause.where or where, _ADVICE.get(family, ""))


@contextmanager
def blame(key: str, base: Path) -> Iterator[None]:
    """What Spark refuses inside becomes an error in a key of the pipeline."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        place = _PLACE_IN_SQL.search(str(error))
        where = f"{key}, line {place[1]} position {place[2]}" if place else key
        raise explain(error, base, where) from error


def find_cause(text: str, base: Path) -> Cause | None:
    """None when the text holds nothing that is known."""
    return _python_cause(text, base) or _spark_cause(text)


def _has_trace(text: str) -> bool:
    return _TRACEBACK in text or "\n\tat " in text or _CONDITION.search(text) is not None


def _python_cause(text: str, base: Path) -> Cause | None:
    """The exception at the end of the last traceback of Python."""
    _, found, last = text.rpartition(_TRACEBACK)
    if not found:
        return None
    raised: list[str] = []
    frames: list[re.Match[str]] = []
    for line in last.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            if not raised and Path(frame["file"]).is_relative_to(base):
                frames.append(frame)
        elif raised or (line and not line[0].isspace()):
            if not line.strip() or line.startswith(("\tat ", _SQL_STATE)):
                break
            raised.append(line)
    match = _RAISED.match("\n".join(raised))
    if match is None:
        return None
    where = _place(frames)
    inner = _spark_cause(match["text"] or "")  # a call into Spark that failed
    kind = match["kind"].rpartition(".")[2]
    if inner is not None:
        return inner._replace(where=where)
    return Cause(kind, (match["text"] or "").strip(), where)


def _place(frames: list[re.Match[str]]) -> str:
    """The last line of the user's own; where there is none, the last of all."""
    own = [each for each in frames if not _is_library(each["file"])]
    if not frames:
        return ""
    last = (own or frames)[-1]
    return f"{last['file']}, line {last['line']}, in {last['function']}"


def _is_library(file: str) -> bool:
    return _LIBRARY.search(file) is not None or Path(file).is_relative_to(_OWN)


def _spark_cause(text: str) -> Cause | None:
    found = [each for each in _CONDITION.finditer(text) if each["name"] not in _AROUND]
    return Cause(found[-1]["name"], found[-1]["text"].strip(), "") if found else None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
