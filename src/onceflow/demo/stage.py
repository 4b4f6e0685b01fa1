"""Where the demo plays: a broker, orders that come in, the pipeline, a reader that watches.

`strike` waits until the pipeline comes to a named point, does there what the strike says, and
returns when a batch is committed again. Nothing is waited for by the clock alone: drivers and tasks
report where they are, and a wait that takes too long raises `DemoStuck`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from onceflow.broker import Broker
from onceflow.client import Admin
from onceflow.demo.count import Watcher
from onceflow.demo.driver import DemoStuck, Driver
from onceflow.demo.feeder import Feeder
from onceflow.demo.orders import ORDERS, PARTITIONS, PATIENT, PIPELINE, pipeline_file
from onceflow.demo.strikes import COMMITTED, Arrival, Points, Strike, Survived, Victim

_CALM: Final = 2
"""So many batches are committed between one strike and the next."""
_PATIENCE_S: Final = 300.0
_LOOK_S: Final = 0.02
_FENCED: Final = "SinkFenced"


class Props(NamedTuple):
    """What is there before the pipeline starts."""

    broker: Broker
    points: Points
    feeder: Feeder
    watcher: Watcher
    pipeline: Path


@contextmanager
def set_up(directory: Path, elapsed_s: Callable[[], float]) -> Iterator[Props]:
    """A broker with topics, into which orders come; all in that directory."""
    with ExitStack() as cleanup:
        # Its port stays its own while it is dead: it comes back where its clients look for it.
        broker = Broker(process=True, data_dir=directory / "broker")
        cleanup.callback(broker.stop)
        broker.start()
        asyncio.run(make_topics(broker.bootstrap))
        pipeline = directory / "pipeline.toml"
        pipeline.write_text(pipeline_file(broker.bootstrap), encoding="utf-8")
        points = cleanup.enter_context(Points())
        feeder = Feeder(broker.bootstrap)
        watcher = Watcher(broker.bootstrap, elapsed_s, lambda: feeder.acknowledged)
        for each in (feeder, watcher):
            each.start()
        cleanup.callback(watcher.stop)
        yield Props(broker, points, feeder, watcher, pipeline)


async def make_topics(bootstrap: str) -> None:
    async with Admin(bootstrap, PATIENT) as admin:
        for name, partitions in PARTITIONS.items():
            await admin.create_topic(name, partitions=partitions)


class Stage:
    """The pipeline, and what happens to it; use it in a `with` block."""

    def __init__(self, props: Props, elapsed_s: Callable[[], float]) -> None:
        self._broker, self._points, self._feeder, _, self._pipeline = props
        self._elapsed_s = elapsed_s
        self._drivers: list[Driver] = []

    @property
    def orders(self) -> int:
        return self._feeder.acknowledged

    @property
    def _driver(self) -> Driver:
        """The one that is to go on."""
        return self._drivers[-1]

    def start_driver(self) -> None:
        name = f"driver-{len(self._drivers) + 1}"
        self._drivers.append(Driver(name, self._points.port, self._pipeline))

    def close(self) -> None:
        for each in self._drivers:
            each.kill()

    # --- strikes --------------------------------------------------------------------------------

    def strike(self, strike: Strike, tell: Callable[[Strike], None]) -> Survived:
        """Brings the pipeline to the point, hits there, tells that, and waits for what follows."""
        self.until_committed(_CALM)
        driver = self._driver
        with self._held(strike.point) as arrival:
            at_s, before = self._elapsed_s(), self._committed(driver)
            self._hit(strike.victim, driver, arrival)
        tell(strike)
        if strike.victim is Victim.BROKER:
            self._broker.restart()
        elif strike.victim is not Victim.WORKER:
            self.start_driver()
            before = 0
        self._until(lambda: self._committed(self._driver) > before, "a commit after a strike")
        again_after_s = self._elapsed_s() - at_s
        note = self._woken(driver) if strike.victim is Victim.ZOMBIE else ""
        return Survived(strike, at_s, again_after_s, note)

    @contextmanager
    def _held(self, point: str) -> Iterator[Arrival]:
        """The next process to come to the point; it goes on, if it can, when the block is left."""
        held = self._points.hold(self._driver.name, point)
        try:
            self._until(lambda: held.arrivals != [], f"a process at the point {point!r}")
            yield held.arrivals[0]
        finally:
            held.release()

    def _hit(self, victim: Victim, driver: Driver, arrival: Arrival) -> None:
        if victim is Victim.WORKER:
            os.kill(arrival.pid, signal.SIGKILL)
        elif victim is Victim.DRIVER:
            driver.kill()
        elif victim is Victim.BROKER:
            self._broker.kill()
        else:
            driver.freeze()

    def _woken(self, zombie: Driver) -> str:
        """It tries to commit what its successor has written meanwhile."""
        zombie.wake()
        status = zombie.until_ended()
        kind, text = zombie.error
        if not status or kind != _FENCED:
            raise DemoStuck(f"a driver that was replaced was not fenced: status {status}, {text}")
        return "fenced"

    # --- waiting --------------------------------------------------------------------------------

    def until_started(self) -> None:
        """Returns when there is a Spark with a query."""
        self._until(lambda: self._driver.has_started, "Spark")

    def until_committed(self, batches: int) -> None:
        """So many more than now."""
        wanted = self._committed(self._driver) + batches
        self._until(lambda: self._committed(self._driver) >= wanted, "a commit")

    def _committed(self, driver: Driver) -> int:
        """Batches, by this driver."""
        return self._points.arrivals[driver.name, COMMITTED]

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        """Raises `DemoStuck` when it is not for too long, or cannot be any more."""
        deadline = time.monotonic() + _PATIENCE_S
        while not is_so():
            self._require_life()
            if time.monotonic() > deadline:
                raise DemoStuck(f"{what} did not come within {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

    def _require_life(self) -> None:
        if not self._driver.is_running:
            raise DemoStuck(f"{self._driver.name} has ended: {self._driver.error[1]}")
        if self._feeder.failure is not None:
            raise DemoStuck(f"orders could not be sent: {self._feeder.failure}")

    # --- the end --------------------------------------------------------------------------------

    def finish(self) -> None:
        """No more orders come, all that have come are done, and the pipeline ends."""
        self._feeder.stop()
        self._until(lambda: self._left() == 0, "the end of all orders")
        self._driver.stop()
        if status := self._driver.until_ended():
            raise DemoStuck(f"{self._driver.name} ended with {status}: {self._driver.error[1]}")

    def _left(self) -> int:
        """Orders, by the offsets that were committed with the output."""
        return self.orders - asyncio.run(_done(self._broker.bootstrap))


async def _done(bootstrap: str) -> int:
    async with Admin(bootstrap, PATIENT) as admin:
        offsets = await admin.committed_offsets(PIPELINE)
    return sum(offset for (topic, _), offset in offsets.items() if topic == ORDERS)
