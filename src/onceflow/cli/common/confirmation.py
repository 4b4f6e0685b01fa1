"""Commands that cannot be taken back ask first, and deletion works the same way for all kinds.

A person at the terminal is asked. Where there is none only `--yes` will do: what comes through a
pipe is no answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from onceflow.cli.common.output import print_json, print_text
from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from onceflow.client import Cluster


class Kind(NamedTuple):
    """What is deleted."""

    name: str
    with_it: str
    """What goes with it for good."""
    delete: Callable[[Cluster, str], Coroutine[Any, Any, object]]


def delete_each(
    kind: Kind,
    names: Sequence[str],
    *,
    bootstrap: str,
    given: Sequence[str] | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Stops at the first that cannot be deleted. Those before it are gone, and are reported in any
    case: each as soon as it is gone, or with `as_json` all in one document before the error."""
    from onceflow.cli.common.session import connected

    confirm(f"Delete {', '.join(names)} with all {kind.with_it}?", yes=yes)
    deleted: list[str] = []
    with connected(bootstrap, given) as session:
        try:
            for name in names:
                session.run(kind.delete(session.cluster, name))
                deleted.append(name)
                if not as_json:
                    print_text(f"deleted {kind.name} {name}")
        finally:
            if as_json:
                print_json({"deleted": deleted})


class NotConfirmed(OnceflowError):
    """The user could not be asked, and did not pass --yes."""


def confirm(question: str, *, yes: bool) -> None:
    """Ends the command unless the user agrees."""
    require_answer(question, yes=yes)
    if not yes:
        typer.confirm(question, abort=True, err=True)


def require_answer(question: str, *, yes: bool) -> None:
    """Raises `NotConfirmed` where `confirm` could not ask: for a command that has to look at the
    cluster before it knows what to ask, and must not do that in vain."""
    if not yes and not sys.stdin.isatty():
        raise NotConfirmed(
            f'nothing was done: "{question}" needs an answer, and standard input is not a '
            "terminal; --yes does it without asking"
        )
