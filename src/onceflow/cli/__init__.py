"""The command `onceflow`: one file for each command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from onceflow import __version__
from onceflow.cli.demo import demo
from onceflow.cli.demo_writer import demo_writer
from onceflow.errors import OnceflowError

app = typer.Typer(
    name="onceflow",
    help="Exactly-once streaming for Python and Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command(hidden=True)(demo_writer)


def _version(asked: bool) -> None:
    if asked:
        print(f"onceflow {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exactly-once streaming for Python and Spark."""


def main() -> None:
    """Runs a command; an error that Onceflow raises on purpose is a message, not a traceback."""
    try:
        app()
    except OnceflowError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(1)
