"""An example that is killed: `onceflow run`, its Python workers, the broker under it; one after the
other, each at a point of a batch. When `onceflow run` is dead, what is committed is judged, and
another one goes on; at the end all of it is."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.interop.harness import eventually
from tests.spark.kills.blows import Blow, Blows
from tests.spark.kills.brokers import Brokers, Role
from tests.spark.kills.fate import GO_ON, Act, Arrival, FateServer
from tests.spark.kills.faults import ROLES, Fault
from tests.spark.kills.world import World
from tests.spark.pipeline.examples import Example
from tests.spark.pipeline.judge import judge_example, judge_example_prefix
from tests.spark.pipeline.places import make_topics
from tests.spark.pipeline.run import LOCAL, ROOT, Run
from tests.spark.pipeline.world import example as copied

ROWS_IN_BATCH: Final = 60
_SETTLES_S: Final = 120.0
_MOST_RUNS: Final = 20
Finish = Callable[[Path], None]
"""Runs a pipeline to its end, when all has happened."""


class Killed(NamedTuple):
    """How it went."""

    struck: list[Blow]
    statuses: list[int]
    """With which each `onceflow run` ended."""
    problems: list[str]


class KilledExample:
    """An example that is set up with all its input, in small batches. Used once."""

    def __init__(
        self,
        example: Example,
        brokers: Brokers,
        directory: Path,
        count: int,
        place: tuple[str, ...] = LOCAL,
    ) -> None:
        """`place`: how `onceflow run` is told where to run."""
        self._example, self._brokers, self._place = example, brokers, place
        self.path, generate = copied(example.directory, directory)
        self.path.write_text(_in_small_batches(self.path.read_text()))
        self._checkpoint = self.path.parent / example.checkpoint
        make_topics(example, brokers.bootstrap)
        asyncio.run(generate.send(brokers.bootstrap, count))
        self._run: Run | None = None

    def play(
        self, fate: FateServer, blows: list[Blow], *, finish: Finish | None = None, seed: int = 1
    ) -> Killed:
        """`finish` goes on when all has happened, instead of another `onceflow run`."""
        coming = Blows(fate, blows, self._act, random.Random(seed))
        fate.watch(coming.arrives)
        statuses: list[int] = []
        problems: list[str] = []
        try:
            while 0 not in statuses and not (finish and coming.are_over and statuses):
                assert len(statuses) < _MOST_RUNS, statuses
                name = f"run-{len(statuses)}"
                coming.new_driver(name)
                statuses.append(self._one_run(fate.of(name).port, name))
                self._brokers.until_mended()
                problems += self._judged_prefix()
        finally:
            fate.watch(None)
            fate.disarm()
        if finish is not None:
            finish(self.path)
        problems += judge_example(self._example, self._brokers.bootstrap, self._checkpoint)
        return Killed(coming.struck, statuses, problems)

    def _one_run(self, port: int, name: str) -> int:
        command = (sys.executable, "-m", "tests.spark.pipeline.driver", str(port), name)
        given = ("--once", "--bootstrap", self._brokers.bootstrap, *self._place)
        paths = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
        self._run = Run(self.path, *given, command=command, environment=paths)
        try:
            status, _ = self._run.end()
            assert status in (0, -signal.SIGKILL), self._run.said
            return status
        finally:
            self._run.close()

    def _act(self, fault: Fault) -> Act:
        if fault in ROLES:
            return lambda arrival: self._kill_broker(ROLES[fault])
        acts: Mapping[Fault, Act] = {
            Fault.DRIVER: self._kill_run,
            Fault.WORKER: lambda arrival: _kill(arrival.pid),
            Fault.EXECUTOR: lambda arrival: _kill(arrival.grandparent),
        }
        return acts[fault]

    def _kill_run(self, arrival: Arrival) -> str:
        return _kill(0 if self._run is None else self._run.pid)

    def _kill_broker(self, role: Role) -> str:
        world = World(self._brokers.bootstrap, self._example.name, self._checkpoint)
        self._brokers.kill(role, world)
        return GO_ON

    def _judged_prefix(self) -> list[str]:
        """What was sent before the end may still be on its way."""
        found: list[str] = []

        def ask() -> list[str]:
            bootstrap = self._brokers.bootstrap
            found[:] = judge_example_prefix(self._example, bootstrap, self._checkpoint)
            return found

        try:
            eventually(ask, lambda problems: not problems, seconds=_SETTLES_S)
        except AssertionError:
            return [f"with nobody running: {line}" for line in found]
        return []


def _in_small_batches(text: str) -> str:
    """The same file, with a limit for each of its sources."""
    limit = f"options = {{ maxOffsetsPerTrigger = {ROWS_IN_BATCH} }}"
    return re.sub(r"^\[source.*\]$", rf"\g<0>\n{limit}", text, flags=re.MULTILINE)


def _kill(pid: int) -> str:
    assert pid > 1, "who was to be killed is gone"
    os.kill(pid, signal.SIGKILL)
    return GO_ON
