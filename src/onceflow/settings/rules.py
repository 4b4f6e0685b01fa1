"""Rules across settings: two of them that cannot hold together.

A contradiction names both settings with their values and says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """Two settings, when they contradict each other, and what to do then."""

    one: str
    other: str
    is_broken: Callable[[Any, Any], bool]
    advice: str


def broken_rules(rules: Iterable[Rule], values: Mapping[str, Any]) -> Iterator[Rule]:
    """Those that the values break; a rule counts only where there are both of its settings."""
    for rule in rules:
        has_both = rule.one in values and rule.other in values
        if has_both and rule.is_broken(values[rule.one], values[rule.other]):
            yield rule


def contradiction(one: str, other: str, advice: str) -> str:
    return f"{one} contradicts {other}: {advice}"


def first_is_larger(one: int, other: int) -> bool:
    return one > other
