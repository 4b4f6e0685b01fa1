"""Queries of Spark are killed, many times and in every way, and their output is counted.

    python -m tests.kill.spark_campaign [--kills 100] [--kafka one|three] [--seed 1] [--own 5]

A seed shuffles all faults at all points of a batch; rounds of some of them go over one query each,
from topic to topic with dead letters or with windowed counts, on local threads or on executors.
Our broker is under them, or one node or three nodes of Apache Kafka. Prints a line for every kill
and a verdict for every round; `--own` kills of the driver at random moments then compare with
Spark's own sink. Ends with status 1 if anything deviates.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.spark.kills.blows import Blow
from tests.spark.kills.brokers import Brokers, OneKafka, Ours, Role, ThreeKafkas
from tests.spark.kills.fate import FateServer
from tests.spark.kills.faults import POINTS, ROLES, Fault
from tests.spark.kills.judge import Verdict, judge
from tests.spark.kills.round import Drivers, Outcome, Round, Stage, making_drivers
from tests.spark.kills.world import make_world
from tests.spark.session import MASTER

ON_EXECUTORS: Final = "local-cluster[2,1,1024]"
BLOWS_IN_ROUND: Final = 8
ROWS_IN_BATCH: Final = 120
TIMEOUT_MS: Final = 20_000
KINDS: Final = ("rows", "counts")


class Setup(NamedTuple):
    """What all rounds share."""

    brokers: Brokers
    fate: FateServer
    directory: Path
    rand: random.Random
    kills: int


def all_blows(roles: frozenset[Role], *, on_executors: bool) -> list[Blow]:
    """Everything that can happen there."""
    faults = [
        fault
        for fault in Fault
        if (fault in ROLES and ROLES[fault] in roles and not on_executors)
        or (fault is Fault.EXECUTOR and on_executors)
        or (fault not in ROLES and fault is not Fault.EXECUTOR and not on_executors)
    ]
    return [Blow(fault, point) for fault in faults for point in POINTS[fault]]


def dealt(roles: frozenset[Role], rand: random.Random, *, on_executors: bool) -> Iterator[Blow]:
    """All of them, shuffled, again and again."""
    while True:
        deck = all_blows(roles, on_executors=on_executors)
        rand.shuffle(deck)
        yield from deck


@contextmanager
def started(kafka: str | None, directory: Path, rand: random.Random) -> Iterator[Brokers]:
    places: dict[str | None, Callable[[], Brokers]] = {
        None: Ours,
        "one": lambda: OneKafka(directory / "kafka"),
        "three": lambda: ThreeKafkas(directory / "kafka", rand),
    }
    with places[kafka]() as brokers:
        yield brokers


class Progress:
    """Says what happens, when it happens."""

    def __init__(self, kills: int) -> None:
        self._kills = kills
        self._began = time.monotonic()
        self.done = 0
        self.by_fault: Counter[Fault] = Counter()

    def tell(self, blow: Blow) -> None:
        self.done += 1
        self.by_fault[blow.fault] += 1
        self.say(f"kill {self.done}/{self._kills}: {blow}")

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {text}", flush=True)


def play(
    setup: Setup, drivers: Drivers, number: int, blows: list[Blow], progress: Progress
) -> Outcome:
    """One round."""
    kind = KINDS[number % len(KINDS)]
    directory = setup.directory / f"round-{number}"
    directory.mkdir()
    rows = ROWS_IN_BATCH * (3 * len(blows) + 4)
    world = make_world(
        setup.brokers.bootstrap,
        directory,
        rows,
        seed=setup.rand.getrandbits(32),
        replicas=setup.brokers.replicas,
    )
    plan = world.plan(kind, ROWS_IN_BATCH, timeout_ms=TIMEOUT_MS)
    stage = Stage(world, setup.brokers, setup.fate, setup.rand)
    outcome = Round(stage, plan, drivers, blows, progress.tell).run()
    progress.say(f"round {number}, {drivers.master}, {outcome.verdict}")
    for what, ended in (("woken drivers ended", outcome.zombies), ("others", outcome.errors)):
        if ended:
            told = ", ".join(f"{name} {count}" for name, count in sorted(ended.items()))
            progress.say(f"  {what}: {told}")
    if not outcome.verdict.problems:
        shutil.rmtree(directory)
    return outcome


def campaign(setup: Setup, progress: Progress) -> list[Outcome]:
    """All rounds, or those up to the first that deviates."""
    local = dealt(setup.brokers.roles, setup.rand, on_executors=False)
    executors = dealt(setup.brokers.roles, setup.rand, on_executors=True)
    outcomes: list[Outcome] = []
    with (
        making_drivers(setup.directory / "local", MASTER) as on_threads,
        making_drivers(setup.directory / "executors", ON_EXECUTORS) as on_executors,
    ):
        while progress.done < setup.kills:
            number = len(outcomes)
            is_remote = number % 4 == 2
            wanted = min(3 if is_remote else BLOWS_IN_ROUND, setup.kills - progress.done)
            deck, drivers = (executors, on_executors) if is_remote else (local, on_threads)
            blows = [next(deck) for _ in range(wanted)]
            outcomes.append(play(setup, drivers, number, blows, progress))
            if outcomes[-1].verdict.problems:
                break
            assert outcomes[-1].struck, "no fault has met its moment"
    return outcomes


def random_kills(setup: Setup, drivers: Drivers, kind: str, kills: int) -> Verdict:
    """The driver is killed at random moments of batches, whichever sink it has."""
    directory = setup.directory / f"own-{kind}"
    directory.mkdir()
    rows_in_batch = 2000
    world = make_world(
        setup.brokers.bootstrap,
        directory,
        rows_in_batch * (3 * kills + 4),
        replicas=setup.brokers.replicas,
    )
    plan = world.plan(kind, rows_in_batch)
    offsets = world.checkpoint / "offsets"
    for _ in range(kills):
        driver = drivers.take()
        driver.go(plan)
        drivers.prepare()
        enough = len(list(offsets.glob("[0-9]*"))) + setup.rand.randint(1, 3)
        while driver.is_running and len(list(offsets.glob("[0-9]*"))) < enough:
            time.sleep(0.01)
        time.sleep(setup.rand.uniform(0, 0.5))
        driver.send(signal.SIGKILL)
        driver.result()
    last = drivers.take()
    last.go(plan)
    ended = last.result()
    assert ended is None, ended
    return judge(world, kind)


def compare_with_own(setup: Setup, kills: int, progress: Progress) -> list[str]:
    """What is wrong with ours; what Spark's own sink does is only shown."""
    with making_drivers(setup.directory / "own-drivers", MASTER) as drivers:
        own = random_kills(setup, drivers, "own", kills)
        ours = random_kills(setup, drivers, "rows", kills)
    for label, found in (("Spark's own sink", own), ("Onceflow's sink", ours)):
        progress.say(
            f"{label}, {kills} kills of the driver: {found.rows_in} rows in, {found.doubled} "
            f"doubled, {found.missing} missing"
        )
    return ours.problems


def main() -> None:
    parser = argparse.ArgumentParser(description="A campaign of kills of Spark's queries.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kafka", choices=["one", "three"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--own", type=int, default=5, help="kills that compare; 0: none")
    arguments = parser.parse_args()
    rand, progress = random.Random(arguments.seed), Progress(arguments.kills)
    directory = Path(tempfile.mkdtemp(prefix="spark-campaign."))
    with started(arguments.kafka, directory, rand) as brokers, FateServer() as fate:
        setup = Setup(brokers, fate, directory, rand, arguments.kills)
        outcomes = campaign(setup, progress)
        found = [line for each in outcomes for line in each.verdict.problems]
        if arguments.own and not found:
            found += compare_with_own(setup, arguments.own, progress)
    for fault, count in progress.by_fault.items():
        print(f"{count:4}  {fault.value}")
    rows = sum(each.verdict.rows_in for each in outcomes)
    prefixes = sum(each.prefixes for each in outcomes)
    print(
        f"seed {arguments.seed}: {progress.done} kills, {len(outcomes)} queries, {rows} rows in, "
        f"{sum(each.verdict.doubled for each in outcomes)} doubled, "
        f"{sum(each.verdict.missing for each in outcomes)} missing; judged {prefixes} times in "
        "between"
    )
    if found:
        sys.exit("\n".join([f"DEVIATIONS (kept in {directory}):", *found]))
    shutil.rmtree(directory)
    print("every row is there once, in order; batches are whole; ledger, group and output agree")


if __name__ == "__main__":
    main()
