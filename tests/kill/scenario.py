"""kill -9 under load: a stream through a foreign client, a broker killed in the midst of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from onceflow import Broker
from tests.kill.payment_clients import PARTITIONS, Client, Place
from tests.kill.payment_ledger import Verdict, judge
from tests.kill.payment_load import Load, read_back

PATIENCE_SECONDS: Final = 60.0


class Stuck(AssertionError):
    """The stream did not go on after a kill."""


class Kill(NamedTuple):
    """One kill: what was known at that moment, and how long the broker was away."""

    acknowledged: int
    in_flight: int
    restart_seconds: float


class Outcome(NamedTuple):
    """What a run of kills left."""

    kills: list[Kill]
    verdict: Verdict
    log_text: str


def wait(load: Load, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not until():
        load.check()
        if time.monotonic() > deadline:
            raise Stuck(f"nothing more was acknowledged within {PATIENCE_SECONDS} s")
        time.sleep(0.005)


def _nothing(broker: Broker) -> None:
    """What usually happens to the data of a broker that is gone."""


def kill_under_load(
    client: Client,
    durability: str,
    kills: int,
    seed: int,
    while_away: Callable[[Broker], None] = _nothing,
) -> Outcome:
    """Kills at random moments of the stream, and holds what is left against what was promised."""
    with Broker(process=True, durability=durability, num_partitions=PARTITIONS) as broker:
        load = Load(client, broker.bootstrap)
        load.start()
        done = list(_kills(broker, load, kills, random.Random(seed), while_away))
        wait(load, lambda: len(load.acknowledged) > done[-1].acknowledged)
        load.stop()
        found: dict[Place, int] = {}
        read_back(client, broker.bootstrap, load.acknowledged, found)
        verdict = judge(load.acknowledged, load.seen, found)
        return Outcome(done, verdict, broker.log_text)


def _kills(
    broker: Broker,
    load: Load,
    kills: int,
    rand: random.Random,
    while_away: Callable[[Broker], None],
) -> Iterator[Kill]:
    for _ in range(kills):
        enough = len(load.acknowledged) + rand.randrange(200, 6000)
        wait(load, partial(_is_due, load, enough))
        in_flight = load.in_flight
        broker.kill()
        if rand.random() < 0.2:  # the one that recovers is killed too, before it does anything else
            broker.restart()
            broker.kill()
        while_away(broker)
        started = time.monotonic()
        broker.restart()
        yield Kill(len(load.acknowledged), in_flight, time.monotonic() - started)


def _is_due(load: Load, enough: int) -> bool:
    return len(load.acknowledged) >= enough and load.in_flight > 0
