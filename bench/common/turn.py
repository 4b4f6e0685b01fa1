"""One broker's turn: what a measure is given, and how it puts load on the broker.

Before each load the disk is synced, so that one broker's unwritten pages are not written in
another's turn; before each turn there are pages of memory to write to. What a broker costs is read
from /proc around the load, when the disk has been synced again. Loads run in processes of their own
and are ended when they take too long.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.common.targets import TARGETS, BenchError, Target, usage

LOAD_SECONDS_MAX: Final = 120.0
_TURN_BYTES: Final = 1 << 30
"""More than a turn writes, or a query on Spark."""
_BLOCK: Final = bytes(1 << 20)

Values = dict[str, float]
S = TypeVar("S")
"""How much work one turn is: every bench has its own measures of that."""


class Turn(NamedTuple, Generic[S]):
    """One broker's turn in one round of a measure."""

    target: Target
    round: int
    scale: S
    scratch: Path


class Measure(NamedTuple, Generic[S]):
    name: str
    run: Callable[[Turn[S]], Values]
    targets: Collection[str] = TARGETS
    """Those that get a turn, of the ones that run."""


def create_topic(target: Target, name: str, partitions: int) -> None:
    """Makes the topic unless it is there."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 3})
    if name in admin.list_topics(timeout=LOAD_SECONDS_MAX).topics:
        return
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result(LOAD_SECONDS_MAX)


def have_memory(scratch: Path) -> None:
    """A virtual machine gives memory that is free back to its host, and to touch such a page again
    costs more than all that a broker does for it: 3 s instead of 1 s for a gigabyte, on whoever's
    turn it is. What is written here and removed leaves pages that are there."""
    path = scratch / "memory"
    with path.open("wb") as file:
        for _ in range(_TURN_BYTES // len(_BLOCK)):
            file.write(_BLOCK)
    path.unlink()


def run_load(command: list[str]) -> str:
    os.sync()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOAD_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"not done after {LOAD_SECONDS_MAX:.0f} s: {' '.join(command)}") from None
    if done.returncode != 0:
        said = (done.stderr + done.stdout)[-2000:].strip()
        raise BenchError(f"{' '.join(command[1:4])} ended with status {done.returncode}: {said}")
    return done.stdout


def python_load(turn: Turn[S], module: str, load: str, topic: str, **options: object) -> Any:
    command = [sys.executable, "-m", f"bench.{module}", load]
    command += ["--bootstrap", turn.target.bootstrap, "--topic", topic]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        command += [f"--{name.replace('_', '-')}", *map(str, values)]
    return json.loads(run_load(command))


class Spent:
    """CPU seconds that a broker used inside the block of `spending`."""

    seconds = 0.0


@contextmanager
def spending(target: Target) -> Iterator[Spent]:
    spent = Spent()
    before = usage(target.pid).cpu_seconds
    yield spent
    os.sync()
    spent.seconds = usage(target.pid).cpu_seconds - before


def quantiles(prefix: str, milliseconds: list[float]) -> Values:
    cuts = statistics.quantiles(milliseconds, n=100)
    return {f"{prefix}-p50": cuts[49], f"{prefix}-p99": cuts[98]}
