"""One query from its first row to its last, and on the way one fault after the other.

A fault waits for its point; once a batch is committed after it, the next one is armed. When a
driver has ended, what is committed by then is judged, and a driver that was made ready meanwhile
goes on with the checkpoint. One that only stands still is woken up at some moment of the next.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

from pyspark.errors import PySparkException

from onceflow.spark.sink import task_plan
from tests.interop.harness import eventually
from tests.spark.kills.blows import Blow, Blows
from tests.spark.kills.brokers import Brokers
from tests.spark.kills.driver import Driver, ended_by
from tests.spark.kills.fate import Arrival, Fate, FateServer
from tests.spark.kills.faults import Scene
from tests.spark.kills.judge import Verdict, judge, judge_prefix
from tests.spark.kills.query import Plan, start_query
from tests.spark.kills.world import World
from tests.spark.sink.hooks import at_points

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STUCK_S: Final = 240.0
"""So long nothing comes to any point."""
FRUITLESS: Final = 3
"""So many drivers may end one after the other without any reason that we know."""
NEVER: Final = ("LedgerConflict", "LedgerMalformed", "IdentityChanged", "SinkRefused", "DataLost")
"""What no fault may lead to: a checkpoint, a ledger and an input that fit each other no more."""
_SETTLES_S: Final = 120.0


class Drivers:
    """Makes them, the next one while one runs."""

    def __init__(self, directory: Path, master: str, more: Mapping[str, str] | None = None) -> None:
        """`more`: settings of Spark."""
        self.master = master
        self._more = more
        self._directory = directory
        self._made: list[Driver] = []
        self._spare: Driver | None = None

    def take(self) -> Driver:
        driver, self._spare = self._spare or self._make(), None
        return driver

    def prepare(self) -> None:
        """Has one ready when it is needed."""
        self._spare = self._spare or self._make()

    def named(self, name: str) -> Driver:
        return next(each for each in self._made if each.name == name)

    def local_dir(self, name: str) -> Path:
        return self.named(name).scratch / "local"

    def _make(self) -> Driver:
        driver = Driver(self._directory / f"driver-{len(self._made)}", self.master, self._more)
        self._made.append(driver)
        return driver

    def close(self) -> None:
        for each in self._made:
            each.close()


@contextmanager
def making_drivers(
    directory: Path, master: str, more: Mapping[str, str] | None = None
) -> Iterator[Drivers]:
    drivers = Drivers(directory, master, more)
    try:
        yield drivers
    finally:
        drivers.close()


class AnyDriver(Protocol):
    """A process of its own, or this one."""

    name: str

    def go(self, plan: Plan) -> None: ...

    @property
    def is_running(self) -> bool: ...

    @property
    def said(self) -> str: ...

    def result(self) -> list[str] | None: ...


class Here:
    """This process as a driver, where Spark runs already."""

    said = ""

    def __init__(self, spark: SparkSession) -> None:
        self.name = "here"
        self._spark = spark
        self._points = ExitStack()
        self._query: Any = None

    def go(self, plan: Plan) -> None:
        hook = Fate(plan.port, self.name) if plan.port else task_plan.nothing
        self._points.enter_context(at_points(hook))
        self._query = start_query(self._spark, plan)

    @property
    def is_running(self) -> bool:
        return bool(self._query.isActive)

    def result(self) -> list[str] | None:
        try:
            self._query.awaitTermination()
        except PySparkException as error:
            return ended_by(error)
        finally:
            self._points.close()
        return None


class Stage(NamedTuple):
    """Where it is played."""

    world: World
    brokers: Brokers
    fate: FateServer
    rand: random.Random


class Outcome(NamedTuple):
    """How a round went."""

    verdict: Verdict
    struck: list[Blow]
    prefixes: int
    """So often what was committed was judged in between."""
    zombies: Counter[str]
    """How drivers ended that were woken up."""
    last_words: list[str]
    """Of the same: what the error said."""
    errors: Counter[str]
    """What ended other drivers."""


class Round:
    """Used once. `last`: who goes on when all has happened, instead of another driver."""

    def __init__(
        self,
        stage: Stage,
        plan: Plan,
        drivers: Drivers,
        blows: list[Blow],
        tell: Callable[[Blow], None] = lambda blow: None,
        last: AnyDriver | None = None,
    ) -> None:
        self._world, self._brokers, self._fate, self._rand = stage
        self._plan = plan._replace(port=self._fate.of("").port)
        self._drivers, self._last = drivers, last
        scene = Scene(
            self._world, self._brokers, drivers.named, drivers.local_dir, self._falls_asleep
        )
        self._blows = Blows(self._fate, blows, scene.act, self._rand, tell)
        self._lock = threading.RLock()
        self._current: AnyDriver = drivers.take()
        self._asleep: list[Driver] = []
        self._woken: list[Driver] = []
        self._wakes_after = 0
        self._moves = 0
        self._errors: Counter[str] = Counter()
        self._prefixes: list[list[str]] = []

    def run(self) -> Outcome:
        self._fate.watch(self._arrives)
        fruitless = 0
        self._blows.new_driver(self._current.name)
        try:
            self._current.go(self._plan)
            while True:
                if self._blows.end_drivers:
                    self._drivers.prepare()
                struck = len(self._blows.struck)
                if self._until_it_ends() is None:
                    break
                fruitless = 0 if len(self._blows.struck) > struck else fruitless + 1
                assert fruitless <= FRUITLESS, f"no driver gets on: {self._errors}"
                self._next_driver()
        finally:
            self._fate.watch(None)
            self._fate.disarm()
        awakened = [*self._awakened()]
        zombies = Counter(name for name, _ in awakened)
        self._brokers.until_mended()
        verdict = judge(self._world, self._plan.kind)
        ends = self._errors + zombies
        problems = [
            *verdict.problems,
            *(line for found in self._prefixes for line in found),
            *(f"{ends[name]} drivers ended by {name}" for name in NEVER if ends[name]),
        ]
        return Outcome(
            verdict._replace(problems=problems),
            self._blows.struck,
            len(self._prefixes),
            zombies,
            [text for _, text in awakened],
            self._errors,
        )

    def _arrives(self, arrival: Arrival) -> None:
        with self._lock:
            self._moves += 1
            if arrival.driver == self._current.name:
                self._wakes_after -= 1
                if self._wakes_after <= 0:
                    self._wake()
        self._blows.arrives(arrival)

    # --- zombies --------------------------------------------------------------------------------

    def _falls_asleep(self, driver: Driver) -> None:
        with self._lock:
            self._asleep.append(driver)
            self._wakes_after = self._rand.randrange(1, 40)

    def _wake(self) -> None:
        for each in self._asleep:
            if each is not self._current:
                each.send(signal.SIGCONT)
                self._woken.append(each)
        self._asleep = [each for each in self._asleep if each is self._current]

    def _awakened(self) -> Iterator[tuple[str, str]]:
        with self._lock:
            self._wake()
        for each in self._woken:
            name, text = each.result() or ("well", "")
            yield name, text

    # --- drivers --------------------------------------------------------------------------------

    def _until_it_ends(self) -> list[str] | None:
        """How the driver ended; one that stands still has ended, too."""
        moves, since = self._moves, time.monotonic()
        while self._current.is_running:
            if self._current in self._asleep:
                return ["Asleep", ""]
            if moves != self._moves:
                moves, since = self._moves, time.monotonic()
            assert time.monotonic() - since < STUCK_S, f"nothing moves: {self._current.said}"
            time.sleep(0.02)
        result = self._current.result()
        if result is not None:
            self._errors[result[0]] += 1
        return result

    def _next_driver(self) -> None:
        if not self._asleep and not any(each.is_running for each in self._woken):
            self._brokers.until_mended()
            self._prefixes.append(self._judged_prefix())
        last = self._last if self._blows.are_over else None
        with self._lock:
            self._current = last or self._drivers.take()
        self._blows.new_driver(self._current.name)
        self._current.go(self._plan)

    def _judged_prefix(self) -> list[str]:
        """What was sent before the end may still be on its way."""
        found: list[str] = []

        def ask() -> list[str]:
            found[:] = judge_prefix(self._world, self._plan.kind)
            return found

        try:
            eventually(ask, lambda problems: not problems, seconds=_SETTLES_S)
        except AssertionError:
            return [f"with no driver running: {line}" for line in found]
        return []


def _no_driver(name: str) -> NoReturn:
    raise LookupError(f"{name} is no driver that could be killed")


def play_here(spark: SparkSession, stage: Stage, plan: Plan, blows: list[Blow]) -> Outcome:
    """A query in this process, which goes on in its place whatever happens to others."""
    local_dir = Path(spark.sparkContext.getConf().get("spark.local.dir") or "")
    world, brokers, fate, rand = stage
    scene = Scene(world, brokers, _no_driver, lambda name: local_dir, lambda driver: None)
    coming = Blows(fate, blows, scene.act, rand)
    here = Here(spark)
    coming.new_driver(here.name)
    fate.watch(coming.arrives)
    try:
        here.go(plan._replace(port=fate.of("").port))
        ended = here.result()
    finally:
        fate.watch(None)
        fate.disarm()
    brokers.until_mended()
    errors = Counter([] if ended is None else [": ".join(ended)])
    return Outcome(judge(world, plan.kind), coming.struck, 0, Counter(), [], errors)
