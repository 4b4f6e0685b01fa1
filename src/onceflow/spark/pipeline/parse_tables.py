"""Judges the tables of a document: all that is wrong is remembered, each with its key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

from onceflow.client import NotAllowed
from onceflow.spark.errors import KeyPath, Problem

Table: TypeAlias = Mapping[str, Any]
Reader: TypeAlias = Callable[[object], Any]


class Judge:
    """Reads values by tables of readers."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def wrong(self, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(path, text))

    def table(self, path: KeyPath, value: object) -> Table:
        if isinstance(value, Mapping):
            return value
        self.wrong(path, f"it is {value!r}, and must be a table: [{'.'.join(path)}]")
        return {}

    def section(self, path: KeyPath, value: object, keys: Mapping[str, Reader]) -> dict[str, Any]:
        """The values of a table that are right."""
        found = {}
        for key, written in self.table(path, value).items():
            if key not in keys:
                self.wrong((*path, key), no_such(key, keys, "key"))
                continue
            try:
                found[key] = keys[key](written)
            except NotAllowed as error:
                self.wrong((*path, key), f"{shown(written)} is not allowed; it may be {error}")
        return found

    def one_of(self, path: KeyPath, given: Table, keys: tuple[str, ...], what: str = "") -> None:
        """Several of these keys contradict each other; with `what`, there must be one."""
        here = [key for key in keys if key in given]
        if len(here) > 1:
            self.wrong((*path, here[1]), f"contradicts {here[0]}: give one of them")
        if not here and what:
            self.wrong(path, f"{listed(keys)} is missing: {what}")

    def need(self, path: KeyPath, given: Table, key: str, what: str) -> None:
        if key not in given:
            self.wrong(path, f"{key} is missing: {what}")


def no_such(name: str, known: Iterable[str], what: str) -> str:
    close = get_close_matches(name, list(known), n=1)
    guess = f"did you mean {close[0]}?" if close else f"there are {listed(tuple(known))}"
    return f"there is no such {what}; {guess}"


def listed(words: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def shown(value: object) -> str:
    written = f'"{value}"' if isinstance(value, str) else repr(value)
    return written if len(written) <= 100 else written[:97] + "..."
