"""Before what cannot be taken back: a person at the terminal is asked, and where there is none only
`--yes` will do. What comes through a pipe is no answer."""

from __future__ import annotations

import sys

import typer

from onceflow.errors import OnceflowError


class NotConfirmed(OnceflowError):
    """Nobody could be asked, and nobody has said yes."""


def confirm(question: str, *, yes: bool) -> None:
    """Ends the command unless the user agrees."""
    require_answer(question, yes=yes)
    if not yes:
        typer.confirm(question, abort=True, err=True)


def require_answer(question: str, *, yes: bool) -> None:
    """Raises `NotConfirmed` where `confirm` could ask nobody: for a command that has to look at the
    cluster before it knows what to ask, and must not do that in vain."""
    if not yes and not sys.stdin.isatty():
        raise NotConfirmed(
            f'nothing was done: nobody is at a terminal to answer "{question}"; --yes does it '
            "without asking"
        )
