"""What commands print: tables for people, JSON for programs, notes and bars on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import typer

if TYPE_CHECKING:
    from rich.console import Console

_LABEL: Final = 7
"""How wide `error:` and its like are."""
_LEAST_TEXT: Final = 12
"""Words are folded to that width, and to no less."""
_GAPS: Final = (2, 1)
"""Between columns; the narrower one where the wider is too much."""


def print_json(document: Any) -> None:
    """One document, readable by people too."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_text(text: str) -> None:
    typer.echo(text)


def note(text: str) -> None:
    """A word to a person at the terminal; a program is not bothered with it."""
    if sys.stderr.isatty():
        typer.echo(typer.style(text, dim=True), err=True)


def warn(text: str, *, as_json: bool) -> None:
    """A note for the user, at a terminal or through a program."""
    if as_json:
        typer.echo(json.dumps({"note": text}), err=True)
    else:
        print_message("note:", text, fg="yellow")


def print_message(label: str, text: str, **style: Any) -> None:
    """A message on standard error; a terminal gets it with no word cut in two."""
    label = f"{label:<{_LABEL}}"
    if sys.stderr.isatty():
        first, *others = text.split("\n")
        lines = _wrapped(label + first, " " * _LABEL)
        for each in others:
            lines += _wrapped(each, " " * (_LABEL + 2)) or [""]
        text = "\n".join(lines)[len(label) :]
    typer.echo(typer.style(label, **style) + text, err=True)


def print_title(name: str, *facts: str) -> None:
    """The first line of a description; on a terminal that is too narrow, more than one."""
    text = "  ".join((name, *facts))
    if sys.stdout.isatty():
        # What belongs together must not be parted: its blanks are hidden while lines are filled.
        parts = "  ".join(fact.replace(" ", "\0") for fact in (name, *facts))
        text = "\n".join(_wrapped(parts, "  ")).replace("\0", " ")
    typer.echo(typer.style(name, bold=True) + text[len(name) :])


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(
        text,
        get_terminal_size().columns,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def counted(number: int, what: str) -> str:
    """`1 record`, `2,000 records`; `what` is the singular."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[str] = ()
) -> None:
    """Columns side by side; those named in `numbers` are aligned to the right.

    A terminal may fold long words, and never a number: where they do not fit side by side, each row
    is a paragraph. A pipe gets every row in one line.
    """
    from rich.cells import cell_len

    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    console, right = _console(), set(numbers)
    least = []
    for name, *column in zip(columns, *cells, strict=True):
        widest = max(map(cell_len, (name, *column)))
        least.append(widest if name in right else min(widest, max(cell_len(name), _LEAST_TEXT)))
    gap = next((each for each in _GAPS if sum(least) + each * len(least) <= console.width), None)
    lines = _stacked(columns, cells)
    if gap is not None:
        lines = _side_by_side(console, columns, cells, right, gap)
    for line in lines:
        typer.echo(line.rstrip())


def _side_by_side(
    console: Console, columns: Sequence[str], cells: list[list[str]], right: set[str], gap: int
) -> Iterator[str]:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for name in columns:
        is_number = name in right
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=is_number)
    for row in cells:
        table.add_row(*row)
    with console.capture() as captured:
        console.print(table)
    yield from captured.get().splitlines()


def _stacked(columns: Sequence[str], cells: list[list[str]]) -> Iterator[str]:
    label = max(map(len, columns))
    for number, row in enumerate(cells):
        if number:
            yield ""
        for name, cell in zip(columns, row, strict=True):
            yield f"{typer.style(f'{name:<{label}}', bold=True)}  {cell}"


def _console() -> Console:
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 10_000
    return Console(highlight=False, markup=False, width=wide, soft_wrap=False)


class Bar(Protocol):
    """Tells how far a long work has come."""

    def advance(self, amount: int) -> None: ...


class _NoBar:
    def advance(self, amount: int) -> None:
        """Nobody is looking."""


class _RichBar:
    def __init__(self, progress: Any, task: Any) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: int) -> None:
        self._progress.advance(self._task, amount)


@contextmanager
def progress_bar(
    what: str, total: int | None, *, in_bytes: bool = False, prints: bool = False
) -> Iterator[Bar]:
    """A bar on standard error, if that is a terminal; but not in the middle of what the work
    `prints` to the same terminal."""
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        yield _NoBar()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _RichBar(progress, progress.add_task(what, total=total))
