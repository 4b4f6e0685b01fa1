"""Processes with sessions are killed (kill -9) and stopped (SIGSTOP) many times, at moments that a
seed chooses.

    python -m tests.kill.session_campaign [--kills 200] [--kafka one|three] [--seed 1]

On Onceflow's broker, or on one node or three nodes of Apache Kafka. Prints one line for every
strike; at the end confluent-kafka reads what was committed. Ends with status 1 unless every record
of the input is there exactly once, and in order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.client.session.strikes import Strikes
from tests.interop.onceflow_server import OnceflowServer
from tests.interop.real_kafka import EAGER, SETTINGS as ONE_NODE
from tools.apache_kafka import ApacheKafka, ApacheKafkaCluster
from tools.kafka_jars import ensure_kafka_jars


@contextmanager
def broker(kafka: str | None, directory: Path) -> Iterator[str]:
    if kafka is None:
        with OnceflowServer(directory / "data", settings=ONE_NODE) as server:
            yield server.bootstrap
    elif kafka == "one":
        properties = {**ONE_NODE, **EAGER}
        with ApacheKafka(ensure_kafka_jars(), directory, properties=properties) as node:
            yield node.bootstrap
    else:
        from tests.interop.client.cluster.three_nodes import SETTINGS, wake_up

        with ApacheKafkaCluster(ensure_kafka_jars(), directory, properties=SETTINGS) as cluster:
            wake_up(cluster)
            yield cluster.bootstrap


def campaign(bootstrap: str, kills: int, seed: int) -> list[str]:
    """The deviations that were found."""
    run = Strikes(bootstrap, seed)
    try:
        for number in range(1, kills + 1):
            kind, instance, moment = run.strike()
            print(f"strike {number}/{kills}: {instance} at {moment!r} {kind.value}", flush=True)
        run.finish()
    finally:
        run.end()
    for kind, count in Counter(each.kind for each in run.done).items():
        print(f"{count:5} {kind.value}")
    return run.deviations()


def main() -> None:
    parser = argparse.ArgumentParser(description="A campaign of kills of sessions.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--kafka", choices=["one", "three"])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="session-campaign.") as directory,
        broker(arguments.kafka, Path(directory)) as bootstrap,
    ):
        found = campaign(bootstrap, arguments.kills, arguments.seed)
    if found:
        sys.exit("\n".join(["DEVIATIONS:", *found]))
    print("every record is there once, and in order")


if __name__ == "__main__":
    main()
