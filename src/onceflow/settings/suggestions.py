"""Words for choices, and for the name that a user may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(
    written: str, known: Iterable[str], *, most: int = 1, likeness: float = 0.6
) -> str:
    """`; did you mean 'linger.ms'?`, to follow what is wrong; empty where nothing is similar.
    `likeness` is from 0 to 1: how similar a name has to be."""
    from difflib import get_close_matches  # a few milliseconds, that only a mistake has to pay

    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(written.lower(), by_lower, n=most, cutoff=likeness)
    if not near:
        return ""
    return f"; did you mean {either(repr(by_lower[each]) for each in near)}?"


def either(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
