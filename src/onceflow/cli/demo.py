"""`onceflow demo`: a loop that is killed at each dangerous moment, and counts once.

A worker reads payments and writes a booking for each, in transactions, by a Kafka client that
others wrote. At one moment after the other the worker or the broker is killed with SIGKILL, or the
worker is replaced while it sleeps. At the end a reader of committed records counts: each payment
must have been booked once. Ends with status 1 if one was not.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from onceflow.errors import OnceflowError


class ClientMissing(OnceflowError):
    """The Kafka client that others wrote is not installed."""


def demo(
    rounds: Annotated[int, typer.Option(min=1, max=100, help="How often to go through all.")] = 1,
) -> None:
    """Kill a worker and its broker at every dangerous moment; each payment counts once."""
    from rich.console import Console

    from onceflow.cli.demo_count import count, verdict_lines
    from onceflow.cli.demo_moments import MOMENTS
    from onceflow.cli.demo_screen import Screen
    from onceflow.cli.demo_stage import Stage

    if find_spec("confluent_kafka") is None:
        raise ClientMissing(
            "the broker is shown with a Kafka client that others wrote, and confluent-kafka is not "
            "here; install it: pip install confluent-kafka"
        )
    console = Console(highlight=False)
    console.print(
        "A worker turns payments into bookings, in transactions, through [bold]confluent-kafka[/] "
        "and an Onceflow broker.\nAt every dangerous moment one of them is killed with "
        "[bold]SIGKILL[/].\n",
        soft_wrap=True,
    )
    moments = MOMENTS * rounds
    screen = Screen(console, len(moments))
    with Stage() as stage, screen.live(stage):
        for moment in moments:
            screen.survived(stage.hit(moment))
        screen.counting()
        stage.finish()
        counted = count(stage.bootstrap, stage.payments)
    console.print()
    for line in verdict_lines(counted, len(moments)):
        console.print(line, soft_wrap=True)
    if not counted.is_good:
        raise typer.Exit(1)
