"""`onceflow serve`: a broker in the foreground.

Prints one line on standard output when it is ready, and logs to standard error; it serves whether
or not anybody reads that. SIGTERM, SIGINT and
SIGHUP stop it in an orderly way; a second one stops it at once, as a crash would: nothing
acknowledged is lost, and the next start recovers. SIGHUP is left alone where it is ignored, as
under `nohup`. A broker that is part of a program ends with it, however it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from onceflow.cli.common import give_up_stdout, not_ignored

if TYPE_CHECKING:
    from onceflow.broker import ListenAddress

_AT_ONCE: Final = 130
_LOOK_SECONDS: Final = 0.5
_log = logging.getLogger(__name__)

DataDir = Annotated[
    str | None,
    typer.Option(help="The directory in which the broker keeps its data.", metavar="DIR"),
]
Listen = Annotated[
    str | None,
    typer.Option(help="The address to listen on. Port 0 takes any free port.", metavar="HOST:PORT"),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        help="The address that the broker tells clients to connect to.", metavar="HOST:PORT"
    ),
]
DurabilityName = Annotated[
    str | None,
    typer.Option(
        help="fsync: acknowledged means synced to disk. os: not synced, like Kafka's default.",
        metavar="fsync|os",
    ),
]
ConfigFile = Annotated[Path | None, typer.Option(help="Settings from a TOML file.", metavar="FILE")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting. Repeatable.", metavar="KEY=VALUE"),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow other machines to connect.")]
LogLevel = Annotated[
    str | None, typer.Option(metavar="debug|info|warning|error", help="How much to log.")
]
LogFormat = Annotated[
    str | None, typer.Option(metavar="text|json", help="Lines for people or for programs.")
]
ExampleConfig = Annotated[
    bool,
    typer.Option(
        "--example-config",
        help="Print a file for --config with every setting, its type, default and meaning, and "
        "exit.",
    ),
]
Parent = Annotated[
    int | None,
    typer.Option(hidden=True, help="Stop when the process with this id is no longer the parent."),
]


def serve(
    data_dir: DataDir = None,
    listen: Listen = None,
    advertise: Advertise = None,
    durability: DurabilityName = None,
    config: ConfigFile = None,
    settings: Settings = None,
    insecure: Insecure = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    example_config: ExampleConfig = False,
    parent: Parent = None,
) -> None:
    """Run a broker in the foreground."""
    if example_config:
        from onceflow.broker import example_toml

        typer.echo(example_toml(), nl=False)
        return
    from onceflow.broker import load_config, run
    from onceflow.runtime import log_to

    flags = {
        "--data-dir": data_dir,
        "--listen": listen,
        "--advertise": advertise,
        "--durability": durability,
        "--insecure": "true" if insecure else None,
        "--log-level": log_level,
        "--log-format": log_format,
        **_pairs(settings or []),
    }
    loaded = load_config(flags, os.environ, config)
    log_to(sys.stderr, level_name=loaded.log_level, log_format=loaded.log_format)
    until = partial(_until_signalled, parent)
    run(loaded, _tell_ready, until, owns_process=True)


def _tell_ready(address: ListenAddress) -> None:
    """Other commands end when the reader of their output has hung up; clients still need this."""
    try:
        print("listening on", address, flush=True)
    except BrokenPipeError:
        give_up_stdout()
        _log.info("listening on %s; standard output has no reader", address)


def _pairs(settings: list[str]) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {}
    for each in settings:
        key, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not of the form KEY=VALUE", param_hint="--set")
        pairs[key.strip()] = value  # what blanks around it mean is for the setting to say
    return pairs


def _until_signalled(parent: int | None) -> Awaitable[object]:
    """Done at the first signal, or when the parent is gone; signals are caught from now on."""
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    numbers = {signal.SIGTERM, signal.SIGINT, *not_ignored()}

    def stop() -> None:
        for number in numbers:
            loop.add_signal_handler(number, os._exit, _AT_ONCE)
        signalled.set()

    for number in numbers:
        loop.add_signal_handler(number, stop)

    def look() -> None:
        if os.getppid() != parent:
            signalled.set()
        else:
            loop.call_later(_LOOK_SECONDS, look)

    if parent is not None:
        look()
    return signalled.wait()
