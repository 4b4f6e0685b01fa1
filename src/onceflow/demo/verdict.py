"""The end of the demo, in words, numbers and bars."""

from __future__ import annotations

from typing import Final, NamedTuple

from rich.console import Console
from rich.text import Text

from onceflow.cli.common import counted
from onceflow.demo.count import Count, Sample
from onceflow.demo.strikes import Survived

_BAR_COLUMNS: Final = 32
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class Outcome(NamedTuple):
    """How the demo went."""

    found: Count
    samples: tuple[Sample, ...]
    survived: tuple[Survived, ...]


class Figure(NamedTuple):
    """One of the numbers that everything comes down to."""

    label: str
    number: int
    must_be: int | None
    """None: it may be whatever it is."""
    note: str

    @property
    def is_good(self) -> bool:
        return self.must_be is None or self.number == self.must_be


def figures(found: Count) -> list[Figure]:
    good = found.orders - found.broken
    return [
        Figure("orders in", found.orders, None, "acknowledged by the broker"),
        Figure("rows out", found.totals, good, f"{good:,} orders are good"),
        Figure("dead letters", found.dead_letters, found.broken, f"{found.broken:,} are broken"),
        Figure("duplicates", found.duplicates, 0, ""),
        Figure("losses", found.losses, 0, ""),
        *([Figure("strangers", found.strangers, 0, "rows of no order")] if found.strangers else []),
        Figure("hidden rows", found.hidden, None, "of aborted transactions; no reader saw them"),
    ]


def headline(outcome: Outcome) -> str:
    """The verdict in one sentence."""
    found = outcome.found
    if not found.is_exact:
        return (
            f"NOT EXACT: of {found.orders:,} orders {found.losses:,} are lost; "
            f"{counted(found.duplicates, 'row')} doubled, {found.strangers:,} of no order"
        )
    strikes = counted(len(outcome.survived), "strike")
    return f"Exactly once: {found.orders:,} orders, {strikes}, none lost, none doubled"


def show(console: Console, outcome: Outcome) -> None:
    """The verdict, and bars for its numbers."""
    found = outcome.found
    style = "bold green" if found.is_exact else "bold red"
    console.print(Text(f"\n{headline(outcome)}\n", style), soft_wrap=True)
    for figure in figures(found):
        console.print(_line(figure, found.orders), soft_wrap=True)
    console.print(
        f"\nChecksum: {found.cents:,} cents in the output, {found.cents_expected:,} in the orders.",
        soft_wrap=True,
    )


def _line(figure: Figure, most: int) -> Text:
    colour = ("red", "green")[figure.is_good] if figure.must_be is not None else "cyan"
    text = Text(f"  {figure.label:<13}")
    text.append(f"{figure.number:>9,}  ", f"bold {colour}" if figure.must_be is not None else "")
    text.append(f"{bar(figure.number, most, _BAR_COLUMNS):<{_BAR_COLUMNS}}  ", colour)
    text.append(figure.note, "dim")
    text.rstrip()
    return text


def bar(number: int, most: int, width: int) -> str:
    """A bar in eighths of a column; what is not nothing can be seen."""
    eighths = -(-number * width * 8 // most) if most else 0
    whole, rest = divmod(min(eighths, width * 8), 8)
    return _EIGHTHS[-1] * whole + (_EIGHTHS[rest] if rest else "")
