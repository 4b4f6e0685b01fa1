"""The command `onceflow`: one file for each command.

Ends with 0 when all went well, 1 on an error, 2 when it was called wrongly, 130 on Ctrl-C, 143 on
SIGTERM and 129 on SIGHUP; such a signal is how `serve` and `run` stop, and then they end with 0.
Results go to standard output, everything else to standard error; with `--json` both are JSON.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from onceflow import __version__
from onceflow.cli.common import (
    APP_SETTINGS,
    LazyCommand,
    catch_signals,
    client_notes,
    lazy_group,
    prepare_streams,
    report,
    status_after,
)
from onceflow.errors import OnceflowError


class SystemRefused(OnceflowError):
    """The system would not do something; the message is its own."""


class ArgumentMalformed(OnceflowError):
    """An argument holds bytes that are no text."""


COMMANDS: Final = {
    "serve": LazyCommand(
        "onceflow.cli.serve", "serve", "Run a broker that Kafka clients take for Kafka."
    ),
    "topics": LazyCommand(
        "onceflow.cli.topics", "app", "Create, list, describe, alter and delete topics."
    ),
    "produce": LazyCommand(
        "onceflow.cli.produce.command", "produce", "Send lines as records to a topic."
    ),
    "consume": LazyCommand(
        "onceflow.cli.consume.command", "consume", "Print the records of a topic."
    ),
    "groups": LazyCommand(
        "onceflow.cli.groups", "app", "List, describe, reset and delete consumer groups."
    ),
    "transactions": LazyCommand(
        "onceflow.cli.transactions", "app", "List, describe, find and abort transactions."
    ),
    "run": LazyCommand(
        "onceflow.cli.run",
        "run",
        "Run a pipeline on Spark, from topics to a topic.",
    ),
    "log": LazyCommand("onceflow.cli.log.command", "app", "Inspect the files of a broker."),
    "demo": LazyCommand(
        "onceflow.demo.command",
        "demo",
        "Kill a pipeline and its broker; each order counts once.",
    ),
}

_FIRST_STEPS: Final = """\b
First steps:
  onceflow serve --data-dir data     (in a terminal of its own)
  onceflow topics create orders --partitions 3
  echo hello | onceflow produce orders
  onceflow consume orders"""

_USAGE_ERROR: Any = typer.BadParameter.__base__
"""All wrong calls; typer names only this one kind of them."""

app = typer.Typer(
    name="onceflow",
    cls=lazy_group(COMMANDS),
    epilog=_FIRST_STEPS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    **APP_SETTINGS,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"onceflow {__version__}")
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
    prepare_streams()
    catch_signals()
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # while it was ending by itself
        status = 0
    sys.exit(status_after(status))


def run(arguments: list[str]) -> int:
    """Runs a command and says how it ended."""
    as_json = "--json" in arguments
    try:
        with client_notes(as_json=as_json):
            status: int | None = app(arguments, prog_name="onceflow", standalone_mode=False)
    except OnceflowError as error:
        report(error, as_json=as_json)
        return 1
    except _USAGE_ERROR as error:
        _hide_options(error)
        if as_json:
            report(error, as_json=True)
        else:
            error.show()
        return 2
    except typer.Abort:  # asked, and not confirmed
        return 1
    except (OSError, UnicodeEncodeError) as error:
        report(_named(error), as_json=as_json)
        return 1
    return status or 0


def _hide_options(error: Any) -> None:
    """An option that is not offered must not be suggested either in the place of one that is not
    there."""
    if error.ctx is not None and getattr(error, "possibilities", None):
        offered = {
            name
            for option in error.ctx.command.params
            if not getattr(option, "hidden", False)
            for name in option.opts
        }
        error.possibilities = [each for each in error.possibilities if each in offered]


def _named(error: OSError | UnicodeEncodeError) -> OnceflowError:
    """What no command has a word for: a file that cannot be read, an argument that is no text."""
    if isinstance(error, UnicodeEncodeError):
        return ArgumentMalformed(f"{error.object!r} is not valid UTF-8")
    if error.filename is not None:
        return SystemRefused(f"{error.filename}: {error.strerror}")
    return SystemRefused(error.strerror or str(error))
