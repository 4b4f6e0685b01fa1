"""How many one-record transactions librdkafka makes at most, whatever the broker.

    python -m bench.ceiling [--rounds 3] [--transactions 1000]

In turns on our broker, synced, on Apache Kafka with its defaults, and on a server that answers with
ready-made bytes (`bench.ceiling.ready_answers`), without any sync and with the two that a durable
transaction needs. A broker has to do more than those do, so they tell which ratios to Apache Kafka
can be had on this machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.common.targets import BenchError, Ours, Target, make_target
from bench.common.turn import create_topic
from bench.transactions.measures import FULL, PARTITIONS, Turn, transactions
from tools.apache_kafka import free_ports

BASE: Final = "kafka"
NAMES: Final = {
    "kafka": "Apache Kafka, unsynced",
    "ours-fsync": "Onceflow, synced",
    "ready": "ready-made answers",
    "ready-synced": "ready-made answers, two syncs",
}


class Behind(Ours):
    """A broker that sends its clients to somebody else."""

    def __init__(self, name: str, directory: Path, advertised: str) -> None:
        super().__init__(name, directory, "os")
        self.advertised = advertised

    @property
    def bootstrap(self) -> str:
        return self.advertised

    def _command(self) -> list[str]:
        return [*super()._command(), "--advertise", self.advertised]


@contextmanager
def started(name: str, directory: Path) -> Iterator[Target]:
    if not name.startswith("ready"):
        target = make_target(name, directory)
        target.start()
        try:
            yield target
        finally:
            target.stop()
        return
    behind = Behind(name, directory, f"127.0.0.1:{free_ports(1)[0]}")
    behind.start()
    command = [sys.executable, "-m", "bench.ceiling.ready_answers", "--listen", behind.advertised]
    command += ["--upstream", "{}:{}".format(*behind.address)]
    if name == "ready-synced":
        command += ["--sync-file", str(directory / "block")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if server.stdout is None or not server.stdout.readline():
            raise BenchError("the server with ready-made answers did not start")
        yield behind
    finally:
        server.kill()
        server.wait()
        behind.stop()


def rate(target: Target, round_: int, count: int, scratch: Path) -> float:
    create_topic(target, "one", PARTITIONS)
    turn = Turn(target, round_, FULL, scratch)
    numbers = transactions(turn, load="one", topic="one", transactions=count, warm_up=count // 10)
    return 1000 * count / float(sum(numbers["milliseconds"]))


def report(rates: dict[str, list[float]]) -> Table:
    table = Table(title="One-record transactions a second, by librdkafka")
    for column in ("", "median", "least to most", "against Apache Kafka"):
        table.add_column(column)
    base = statistics.median(rates[BASE])
    for name, found in rates.items():
        middle = statistics.median(found)
        span = f"{min(found):.0f} to {max(found):.0f}"
        table.add_row(NAMES[name], f"{middle:.0f}", span, f"{middle / base:.2f}x")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="What no broker can exceed.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transactions", type=int, default=1000)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in NAMES}
    with TemporaryDirectory(prefix="bench-ceiling-") as directory, ExitStack() as stack:
        scratch = Path(directory)
        targets = {name: stack.enter_context(started(name, scratch / name)) for name in NAMES}
        for round_ in range(-1, arguments.rounds):  # the first one warms up
            for name, target in targets.items():
                found = rate(target, round_, arguments.transactions, scratch)
                if round_ >= 0:
                    rates[name].append(found)
    Console().print(report(rates))


if __name__ == "__main__":
    main()
