"""Reads a `pipeline.toml`: every problem comes with the line on which it stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from onceflow.spark.errors import InvalidPipeline, KeyPath, KeyProblem
from onceflow.spark.pipeline.parse import read_plan
from onceflow.spark.pipeline.plan import PipelinePlan


def load_plan(path: Path, *, bootstrap: str | None = None) -> PipelinePlan:
    """The plan that a file describes; with `bootstrap`, on that cluster, whatever the file says of
    one. Raises `InvalidPipeline`. Relative paths in it are relative to where it lies."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
    except OSError as error:
        raise InvalidPipeline(
            [KeyProblem((), f"it cannot be read: {error.strerror}")], path
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidPipeline([KeyProblem((), f"it is not TOML: {error}")], path) from error
    except RecursionError:
        raise InvalidPipeline([KeyProblem((), "it is nested too deeply")], path) from None
    if bootstrap is not None:
        document = _elsewhere(document, bootstrap)
    try:
        return read_plan(document, path.parent.absolute())
    except InvalidPipeline as error:
        raise InvalidPipeline(error.problems, path, key_lines(text)) from None


def _elsewhere(document: Mapping[str, Any], bootstrap: str) -> dict[str, Any]:
    """The same document for another cluster."""
    found = {name: table for name, table in document.items() if name != "broker"}
    source = found.get("source")
    if isinstance(source, Mapping):
        found["source"] = {**source, "bootstrap": bootstrap}
    return found


# --- on which line each key stands ---------------------------------------------------------------
#
# `tomllib` gives values without their places, and so do the libraries that keep a document's form.
# So the text is read a second time. `tomllib` must have accepted it: nothing is checked here.
#
# A key is named by its path (`("source", "orders", "topics")`); elements of arrays by their
# numbers.


_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
_DOT: Final = re.compile(r"[ \t]*\.[ \t]*")
_EQUALS: Final = re.compile(r"[ \t]*=[ \t]*")
# Three quotation marks end a long string, though up to two more may be part of it.
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?!")|' + r"'''.*?'''(?!')|" + r'"(?:[^"\\]|\\.)*"|' + r"'[^']*'",
    re.DOTALL,
)
_PLAIN: Final = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The first line of each key and table, counted from 1."""
    return _Walk(text).lines


class _Walk:
    """Goes through a document from its begin to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._arrays: dict[KeyPath, int] = {}
        self.lines: dict[KeyPath, int] = {}
        prefix: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(text):
            if text[self._at] == "[":
                prefix = self._header()
            else:
                self._pair(prefix)
            self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _note(self, path: KeyPath) -> None:
        line = self._text.count("\n", 0, self._at) + 1
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def _header(self) -> KeyPath:
        """`[a.b]`, or `[[a.b]]` for one more element of an array."""
        brackets = 2 if self._text.startswith("[[", self._at) else 1
        self._at += brackets
        path = self._elements(self._key())
        if brackets > 1:
            number = self._arrays[path] = self._arrays.get(path, -1) + 1
            path = (*path, str(number))
        self._note(path)
        self._skip(re.compile(r"[ \t]*\]+"))
        return path

    def _elements(self, key: KeyPath) -> KeyPath:
        """A path below an array of tables goes through its last element."""
        path: KeyPath = ()
        for part in key[:-1]:
            path = (*path, part)
            if path in self._arrays:
                path = (*path, str(self._arrays[path]))
        return (*path, key[-1])

    def _key(self) -> KeyPath:
        self._skip(re.compile(r"[ \t]*"))
        parts = [self._part()]
        while self._skip(_DOT):
            parts.append(self._part())
        return tuple(parts)

    def _part(self) -> str:
        written = self._skip(_PART)
        if written[:1] in ('"', "'"):
            return str(tomllib.loads(f"key = {written}")["key"])
        return written

    def _pair(self, prefix: KeyPath) -> None:
        path = (*prefix, *self._key())
        self._note(path)
        self._skip(_EQUALS)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at : self._at + 1]
        if first == "[":
            self._inside("]", path, has_keys=False)
        elif first == "{":
            self._inside("}", path, has_keys=True)
        elif not self._skip(_STRING):
            self._skip(_PLAIN)

    def _inside(self, end: str, path: KeyPath, *, has_keys: bool) -> None:
        """The values of an array or of an inline table, up to its end."""
        self._at += 1
        number = 0
        while True:
            self._skip(_BLANK)
            if self._text.startswith(end, self._at):
                self._at += 1
                return
            if has_keys:
                self._pair(path)
            else:
                self._note((*path, str(number)))
                self._value((*path, str(number)))
            number += 1
            self._skip(_BLANK)
            if self._text.startswith(",", self._at):
                self._at += 1
