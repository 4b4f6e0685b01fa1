"""Nodes of an Apache Kafka cluster are killed under our client, many times, at moments that a seed
chooses.

    python -m tests.kill.client_campaign [--kills 20] [--seed 1]

Three nodes; an idempotent producer, transactional ones, patient and not, drivers with worker
processes, in both protocols, and a reader behind each of them, all at once. Prints one line for
every kill, and at the end what each load saw and whether the log keeps what it was promised. Ends
with status 1 if it does not, or if a load stands still.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

from tests.interop.client.cluster.kills import Kill, kill_at
from tests.interop.client.cluster.loads import (
    IMPATIENT,
    Driven,
    Follower,
    Load,
    Stream,
    Transactions,
)
from tests.interop.client.cluster.three_nodes import SETTINGS, wake_up
from tests.interop.harness import Names
from tools.apache_kafka import ApacheKafkaCluster
from tools.kafka_jars import ensure_kafka_jars

NEWER, OLDER = 2, 1


def make_loads(names: Names) -> list[Load]:
    writers: list[Load] = [
        Stream(names),
        Transactions(names, "transactions-2", NEWER),
        Transactions(names, "transactions-1", OLDER),
        Transactions(names, "impatient-2", NEWER, IMPATIENT),
        Transactions(names, "impatient-1", OLDER, IMPATIENT),
        Driven(names, "driven-2", NEWER),
        Driven(names, "driven-1", OLDER),
    ]
    return [*writers, *map(Follower, writers)]


def kill_many(
    cluster: ApacheKafkaCluster, loads: list[Load], kills: int, rand: random.Random
) -> list[Kill]:
    done = []
    targets = [each for each in loads if each.moments]
    for number in range(1, kills + 1):
        load = rand.choice(targets)
        moment = rand.choice(load.moments)
        frozen = rand.random() < 0.3
        kill = kill_at(cluster, loads, load, moment, rand, frozen=frozen)
        done.append(kill)
        print(
            f"kill {number}/{kills}: node {kill.node_id}, {moment.value} ({load.label}"
            f"{', frozen first' if frozen else ''}): all go on after {kill.stall_s:.1f} s",
            flush=True,
        )
    return done


def campaign(kills: int, seed: int, directory: Path) -> list[str]:
    """The deviations that were found."""
    jars = ensure_kafka_jars()
    with ApacheKafkaCluster(jars, directory, properties=SETTINGS) as cluster:
        wake_up(cluster)
        loads = make_loads(Names.fresh(cluster.bootstrap))
        for each in loads:
            each.start()
        try:
            done = kill_many(cluster, loads, kills, random.Random(seed))
        finally:
            for each in loads:
                each.stop()
        found = []
        for each in loads:
            wrong = each.deviations()
            found += wrong
            seen = ", ".join(f"{name} {count}" for name, count in sorted(each.seen.items()))
            verdict = "DEVIATES" if wrong else "exact"
            print(f"{each.label}: {each.done} outcomes, {verdict}; saw {seen or 'no error'}")
    stalls = sorted(each.stall_s for each in done)
    print(
        f"{kills} kills; stall median {statistics.median(stalls):.1f} s, longest {stalls[-1]:.1f}"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="A campaign of kills of a cluster's nodes.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="client-campaign.") as directory:
        found = campaign(arguments.kills, arguments.seed, Path(directory))
    if found:
        sys.exit("\n".join(["DEVIATIONS:", *found]))
    print(
        "every acknowledged record and every committed transaction is there once, in order, whole"
    )


if __name__ == "__main__":
    main()
