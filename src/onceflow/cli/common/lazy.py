"""Commands that are loaded when they are called: `onceflow --help` must not wait for numba.

What the list of commands shows stands in the table; the module of a command is imported when the
command itself, or its own help, is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from onceflow.cli.common.streams import give_up_stdout

CONTEXT_SETTINGS: Final = {"max_content_width": 100}
APP_SETTINGS: Final[dict[str, Any]] = {
    "add_completion": False,
    "context_settings": CONTEXT_SETTINGS,
    "rich_markup_mode": None,  # its boxes leave half of a terminal for what is to be read
}


class LazyCommand(NamedTuple):
    """Where a command lives: a function, or a `typer.Typer` with commands of its own."""

    module: str
    attribute: str
    summary: str

    def load(self, name: str) -> Any:
        found = getattr(import_module(self.module), self.attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(**APP_SETTINGS)
            found.command(name)(function)
        command: Any = get_command(found)
        command.name = name
        return command

    def listed(self, name: str) -> TyperCommand:
        """What stands for it in the list of commands."""
        return TyperCommand(
            name,
            help=self.summary,
        )


@contextmanager
def _seen_enough() -> Iterator[None]:
    """The reader of our output may hang up; that is no error."""
    try:
        yield
    except BrokenPipeError:
        give_up_stdout()
        raise typer.Exit(0) from None


def lazy_group(table: Mapping[str, LazyCommand]) -> type[TyperGroup]:
    """The class of a group that has the commands of the table."""

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            for name, command in table.items():
                self.add_command(command.listed(name), name)

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            name, command, rest = super().resolve_command(ctx, args)
            if name is not None and name in table:
                command = table[name].load(name)
            return name, command, rest

        def make_context(self, *args: Any, **named: Any) -> Any:
            with _seen_enough():  # the help and the version are printed here
                return super().make_context(*args, **named)

        def invoke(self, ctx: Any) -> Any:
            with _seen_enough():
                result = super().invoke(ctx)
                sys.stdout.flush()
                return result

    return LazyGroup
