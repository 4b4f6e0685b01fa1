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
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(
            f'nothing was done: nobody is at a terminal to answer "{question}"; --yes does it '
            "without asking"
        )
    typer.confirm(question, abort=True, err=True)
