"""`onceflow demo`: a pipeline on Spark that is killed again and again, and counts once.

Orders come into a broker; `onceflow run` turns them into totals, and what is broken into dead
letters. Its driver, one of its workers and the broker are killed with SIGKILL at named points of a
batch, and a driver is replaced while it is frozen. At the end a client that others wrote counts:
every good order must be in the output once, every broken one once in the dead letters. Ends with
status 1 if one is not.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from onceflow.cli.common import no_connection_notes
from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from rich.console import Console

    from onceflow.demo.verdict import Outcome

ALL: Final = 4
"""Strikes that differ."""
_TERMINATED: Final = 128 + signal.SIGTERM


class ClientMissing(OnceflowError):
    """The Kafka client that others wrote is not installed."""


class NotExact(OnceflowError):
    """An order is missing, or is there twice: what must never be."""


Strikes = Annotated[
    int,
    typer.Option(
        min=1, max=100, help=f"How many times to strike; from {ALL + 1} on they are repeated."
    ),
]
Picture = Annotated[
    Path,
    typer.Option(metavar="FILE", dir_okay=False, help="Where to write the picture, an SVG file."),
]


def demo(strikes: Strikes = ALL, picture: Picture = Path("onceflow-demo.svg")) -> None:
    """Kill a Spark pipeline and its broker at dangerous moments; each order counts once."""
    from rich.console import Console

    from onceflow.demo.picture import draw
    from onceflow.demo.verdict import show

    _require_place(picture)
    _require_others()
    console = Console(highlight=False)
    console.print(
        "Orders go through a broker and a pipeline on [bold]Spark[/], which are killed with "
        "[bold]SIGKILL[/] at their worst moments.\nIn the end a client that others wrote counts.\n",
        soft_wrap=True,
    )
    with no_connection_notes(), _ended_by_sigterm(), _scratch(console) as directory:
        outcome = _play(console, directory, strikes)
        show(console, outcome)
        picture.write_text(draw(outcome), encoding="utf-8")
        console.print(f"picture: {picture.absolute()}", soft_wrap=True)
        if not outcome.found.is_exact:
            raise NotExact("not every order was counted once")


def _require_place(picture: Path) -> None:
    """It would be a pity to find that out at the end."""
    place = picture.absolute().parent
    if not os.access(place, os.W_OK):
        raise typer.BadParameter(f"{place} is not a writable directory", param_hint="--picture")


def _require_others() -> None:
    """Before anything is started, what has to be there that others made."""
    from onceflow.spark.session import find_java_home, require_spark

    if find_spec("confluent_kafka") is None:
        raise ClientMissing(
            "the demo counts its output with a Kafka client that is not ours, and confluent-kafka "
            "is not installed: pip install confluent-kafka"
        )
    require_spark()
    find_java_home(os.environ)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM leaves the block as Ctrl-C does, so that nothing is left behind. Another one does not
    disturb what tidies up."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _scratch(console: Console) -> Iterator[Path]:
    """A directory for everything; after an error it stays, to look at."""
    directory = Path(tempfile.mkdtemp(prefix="onceflow-demo-"))
    try:
        yield directory
    except Exception:
        console.print(f"all files of this run are in {directory}", soft_wrap=True)
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)


def _play(console: Console, directory: Path, strikes: int) -> Outcome:
    from onceflow.demo.count import count
    from onceflow.demo.feeder import PER_SECOND
    from onceflow.demo.screen import Screen
    from onceflow.demo.stage import Stage, set_up
    from onceflow.demo.strikes import planned
    from onceflow.demo.verdict import Outcome

    began = time.monotonic()

    def elapsed_s() -> float:
        return time.monotonic() - began

    screen = Screen(console, elapsed_s, strikes)
    with screen.live():
        screen.say("the broker starts")
        with set_up(directory, elapsed_s) as props, closing(Stage(props, elapsed_s)) as stage:
            screen.watch(props.watcher)
            screen.show_file(props.pipeline.read_text(encoding="utf-8"))
            screen.say(f"{PER_SECOND:,} orders a second come in; Spark starts")
            stage.start_driver()
            stage.until_started()
            screen.say("Spark is there, and plans the first batch")
            stage.until_committed(1)
            screen.say("the first rows are committed")
            for strike in planned(strikes):
                screen.survived(stage.strike(strike, screen.struck))
            screen.say("no more orders; the pipeline finishes what is left")
            stage.finish()
            screen.say("confluent-kafka counts")
            counted = count(props.broker.bootstrap, stage.orders)
            return Outcome(counted, tuple(props.watcher.samples), tuple(screen.survivals))
