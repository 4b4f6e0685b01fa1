"""`onceflow demo`: a broker is killed again and again under load, and loses nothing.

The broker is a process of its own. Payments go through it by a Kafka client that others wrote, and
while some are in flight it is killed with SIGKILL and started again on its data. At the end all is
read back: every payment that was acknowledged must be where it was acknowledged, and in order.
Ends with status 1 if one is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from onceflow.broker.embedded import Broker
    from onceflow.cli.demo_load import Load
    from onceflow.cli.demo_screen import Screen

ACKNOWLEDGED_BETWEEN: Final = 10_000
_PATIENCE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.01


class DemoStuck(OnceflowError):
    """Nothing was acknowledged for too long."""


def demo(
    kills: Annotated[int, typer.Option(min=1, max=100, help="How often to kill the broker.")] = 4,
    client: Annotated[
        str | None,
        typer.Option(help="Which Kafka client to use: confluent-kafka, kafka-python or aiokafka."),
    ] = None,
) -> None:
    """Kill a broker under load, again and again, and show that nothing is lost."""
    from rich.console import Console

    from onceflow.broker.embedded import Broker
    from onceflow.cli.demo_clients import PARTITIONS, find_client
    from onceflow.cli.demo_ledger import judge
    from onceflow.cli.demo_load import Load, read_back
    from onceflow.cli.demo_screen import Phase, Progress, Screen, verdict_lines

    chosen = find_client(client)
    console = Console(highlight=False)
    console.print(
        f"Payments go through [bold]{chosen.package}[/] into an Onceflow broker, which is killed "
        f"with [bold]SIGKILL[/] {kills} times while it works.\n",
        soft_wrap=not console.is_terminal,
    )
    progress = Progress(kills)
    screen = Screen(console, progress)
    with screen.live(), Broker(process=True, num_partitions=PARTITIONS) as broker:
        progress.load = load = Load(chosen, broker.bootstrap)
        load.start()
        screen.up(broker.bootstrap, broker.pid)
        for _ in range(kills):
            _kill(broker, load, screen)
        load.stop()
        progress.phase = Phase.READING_BACK
        read_back(chosen, broker.bootstrap, load.acknowledged, progress.found)
    verdict = judge(load.acknowledged, load.seen, progress.found)
    console.print()
    for line in verdict_lines(verdict, kills):
        console.print(line, soft_wrap=True)
    if not verdict.is_good:
        raise typer.Exit(1)


def _kill(broker: Broker, load: Load, screen: Screen) -> None:
    """Lets the stream flow, kills the broker in the midst of it, and waits for it to flow again."""
    from onceflow.cli.demo_screen import Kill

    enough = len(load.acknowledged) + ACKNOWLEDGED_BETWEEN
    _wait(load, lambda: len(load.acknowledged) >= enough and load.in_flight > 0)
    in_flight = load.in_flight
    broker.kill()
    killed_at = time.monotonic()
    screen.killed()
    acknowledged = len(load.acknowledged)
    broker.restart()
    listening_ms = (time.monotonic() - killed_at) * 1000
    screen.up(broker.bootstrap, broker.pid)
    # By now the client has told of all that the broker had acknowledged before it was killed.
    old = len(load.acknowledged)
    _wait(load, lambda: len(load.acknowledged) > old)
    next_ack_ms = (time.monotonic() - killed_at) * 1000
    screen.back(Kill(acknowledged, in_flight, listening_ms, next_ack_ms))


def _wait(load: Load, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not until():
        load.check()
        if time.monotonic() > deadline:
            raise DemoStuck(f"nothing more was acknowledged within {_PATIENCE_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)
