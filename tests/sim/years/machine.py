"""A computer with a broker on it, for years: its clocks, its power, and what they did.

Days pass in three ways. Awake, with every timer of the broker at its time; standing still, as a
virtual machine that is paused: then all timers are late; and asleep, as a laptop whose lid is
closed: only the wall clock knows of it. The wall clock may also be set, ahead or back.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from onceflow.broker import server as server_module
from onceflow.broker.config.settings import ListenAddress
from onceflow.broker.server import Runtime, Server
from onceflow.errors import OnceflowError
from onceflow.log.partition_log import PartitionLog
from onceflow.testing.background import SimBackground
from onceflow.testing.crash import forget_settled, sampled_images
from onceflow.testing.world import World
from tests.sim.txn.history import PromiseBroken
from tests.unit.broker.broker_under_test import RawClient, config

HOUR_S: Final = 3_600.0
DAY_S: Final = 24 * HOUR_S
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
CHECK_S: Final = 2 * HOUR_S
"""Between two looks of the broker for whatever is old: every five minutes would be 100,000 in a
year."""
MARGIN_MS: Final = 60_000
"""Between what the broker noted of a time and what its client did."""
NOTICED_S: Final = 3 * CHECK_S
"""Within that it has looked, and done what is to be done."""
ADDRESS: Final = ListenAddress("broker", 9092)
OWN_SEGMENT_BYTES: Final = 3_000
"""Of the broker's own logs: so that a week of few requests fills what takes a busy broker a day."""
INT_MAX: Final = 2**31 - 1
SETTINGS: Final[dict[str, Any]] = {
    "listen": ListenAddress("localhost", 9092),
    "advertise": ADDRESS,
    "journal_first_file_bytes": 16 << 10,
    "journal_largest_file_bytes": 32 << 10,
    "journal_files": 2,
    "os_checkpoint_bytes": 64 << 10,
    "log_retention_check_interval_ms": int(CHECK_S * 1000),
    "log_cleaner_backoff_ms": int(CHECK_S * 1000),
    "offsets_retention_check_interval_ms": int(CHECK_S * 1000),
    "transaction_expiration_check_interval_ms": int(CHECK_S * 1000),
    "producer_id_expiration_check_interval_ms": int(CHECK_S * 1000),
    "group_max_session_timeout_ms": INT_MAX,
    "transaction_two_phase_commit_enable": True,
}


@contextmanager
def rare_sweeps() -> Iterator[None]:
    """Connections are looked after each hour: every five seconds would be most of a year's work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "_SWEEP_SECONDS", HOUR_S)
        yield


class Moment(NamedTuple):
    """What the clocks showed once."""

    now: float
    wall: int
    steady: int
    started: float
    """When the broker of then was started, by the monotonic clock."""
    steady_before: int
    """The steady time after the start or jump before this moment."""

    def oldest(self, stamp_ms: int, since: float) -> int:
        """The most that the broker may take for the age of what it stamped so, `since` then: now,
        or at any moment after the last start or jump."""
        if stamp_ms <= self.steady:
            age_ms = min(self.wall, self.steady) - stamp_ms
            # An earlier broker's stamp from ahead aged by the wall clock until the steady time
            # reached it.
            was_ahead = self.started > since and stamp_ms > self.steady_before
            return max(age_ms, self.wall - self.steady) if was_ahead else age_ms
        if self.started <= since:  # no jump makes older what it has stamped itself
            return int((self.now - since) * 1000)
        return self.wall - stamp_ms


class Clocks:
    """What the clocks showed, and when everything went its ordinary way.

    Records age by the wall clock. What the broker stamps itself, offsets and transactional ids,
    ages by a steady time: the wall time of its start, and what has passed since.
    """

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self._started = (0.0, self._clock.wall_ms())
        self._moments: list[Moment] = []
        """Before each start and before each jump."""
        self._furthest = 0
        """Of their wall times."""
        self._steady_before = self._clock.wall_ms()
        self.ordinary_since = 0.0
        """By the monotonic clock: since then nothing was set, stopped or started."""

    def now(self) -> float:
        return self._clock.monotonic()

    def wall(self) -> int:
        return self._clock.wall_ms()

    def steady(self) -> int:
        since, wall_ms = self._started
        return wall_ms + int((self.now() - since) * 1000)

    def stamp(self) -> int:
        """As the broker stamps what happens now."""
        return max(self.wall(), self.steady())

    def furthest(self) -> int:
        """The latest that the wall clock has ever shown."""
        return max(self.wall(), self._furthest)

    def ended(self) -> None:
        """The broker is gone."""
        self._note_moment()
        self.disturbed()

    def started(self) -> None:
        self._started = self.now(), self.wall()
        self._steady_before = self.steady()
        self.disturbed()

    def disturbed(self) -> None:
        self.ordinary_since = self.now()

    def _moment(self) -> Moment:
        return Moment(self.now(), self.wall(), self.steady(), self._started[0], self._steady_before)

    def _note_moment(self) -> None:
        self._moments.append(self._moment())
        self._furthest = self.furthest()

    def set_by(self, by_ms: int) -> None:
        self._note_moment()
        self._clock.jump_wall(by_ms)
        self._steady_before = self.steady()
        self.disturbed()

    def _since(self, then: float) -> list[Moment]:
        """The moments since then at which something was older than ever."""
        found = [self._moment()]
        for moment in reversed(self._moments):
            if moment.now < then:
                break
            found.append(moment)
        return found

    # --- what goes by the wall clock ------------------------------------------------------------

    def was_older(self, wall_ms: int, since: float, age_ms: int) -> bool:
        """Whether what is of `wall_ms` had reached an age at any moment since `since`."""
        latest = max(moment.wall for moment in self._since(since))
        return latest - wall_ms >= age_ms - MARGIN_MS

    def must_be_noticed(self, wall_ms: int, age_ms: int) -> bool:
        """Whether the broker has looked for what is of `wall_ms` after it had reached an age."""
        return self._has_looked() and self.wall() - NOTICED_S * 1000 - wall_ms > age_ms

    # --- what goes by the broker's own stamps ---------------------------------------------------

    def was_expired(self, stamp_ms: int, since: float, age_ms: int) -> bool:
        """Whether the broker may ever have taken what it stamped so for that old."""
        oldest = max(moment.oldest(stamp_ms, since) for moment in self._since(since))
        return oldest >= age_ms - MARGIN_MS

    def must_be_expired(self, stamp_ms: int, age_ms: int) -> bool:
        """Whether the broker has looked for it after it was that old. A stamp from behind a jump is
        given its time."""
        then_ms = min(self.wall(), self.steady()) - int(NOTICED_S * 1000)
        return self._has_looked() and then_ms - stamp_ms > age_ms

    def _has_looked(self) -> bool:
        return self.now() - self.ordinary_since >= NOTICED_S


class Machine:
    """One broker after the other, on one disk."""

    def __init__(self, world: World, durability: str) -> None:
        self.world = world
        self.clocks = Clocks(world)
        self.disk = world.disk
        self.durability = durability
        self.did: Counter[str] = Counter()
        self.diary: deque[str] = deque(maxlen=20)
        """What happened last, for whoever looks for the reason of a failure."""
        self._rand = world.rand.fork("machine")
        self._starts = 0
        self._server: Server | None = None
        self._up = asyncio.Event()
        self.started_at = 0.0
        """All that was acknowledged before is on the disk, whatever the durability."""

    @property
    def server(self) -> Server:
        if self._server is None:
            raise PromiseBroken("no broker runs")
        return self._server

    @property
    def is_up(self) -> bool:
        return self._server is not None

    @property
    def _process(self) -> str:
        return f"broker {self._starts}"

    def note(self, what: str) -> None:
        self.did[what] += 1
        days = self.clocks.now() / DAY_S
        self.diary.append(f"{days:.3f} d, wall {self.clocks.wall()}: {what}")

    # --- the broker -----------------------------------------------------------------------------

    async def start(self) -> None:
        self._starts += 1
        world = self.world
        rand = world.rand.fork(self._process)
        runtime = Runtime(
            world.clock, rand, world.net.host("broker"), self.disk, self._background()
        )
        settings = {**SETTINGS, "durability": self.durability}
        self.clocks.started()
        server = Server(config(**settings), runtime)
        try:
            await world.loop.spawn(self._process, server.start())
        except OnceflowError as error:
            raise PromiseBroken(f"the broker does not start: {error!r}") from error
        self._server = server
        self.note("started")
        self.started_at = self.clocks.now()
        self.shrink_own_logs()
        self._up.set()

    def _background(self) -> SimBackground:
        rand = self.world.rand.fork(f"background {self._starts}")
        loop = self.world.loop
        return SimBackground(
            rand.fork("lanes"), lambda step: loop.call_later(rand.uniform(0, 0.005), step)
        )

    def shrink_own_logs(self) -> None:
        """Lets the logs in which the broker keeps its own state roll as often as those of topics
        do here."""
        for log in self.logs():
            if log.topic.startswith("__"):
                log.config = replace(log.config, segment_bytes=OWN_SEGMENT_BYTES)

    def logs(self) -> list[PartitionLog]:
        """Of all partitions, and that of the topics themselves."""
        topics = self.server.node.topics
        logs = [part.log for topic in topics.by_name.values() for part in topic.partitions]
        return [*logs, topics._log]

    def check_alive(self) -> None:
        if self._server is not None and self._server.failed.done():
            raise PromiseBroken(f"the broker has stopped itself: {self._server.failed.result()!r}")

    async def stop(self) -> None:
        """An orderly stop."""
        server, self._server = self.server, None
        self._up.clear()
        self.note("stopped")
        await self.world.loop.spawn(self._process, server.stop())
        self.world.net.kill("broker")
        self.world.loop.kill_process(self._process)
        self.clocks.ended()

    def kill(self) -> None:
        """As by kill -9: what the page cache holds stays."""
        self.note("killed")
        self._end_process()
        self.disk.unlock("lock")
        self.clocks.ended()

    def cut_power(self) -> None:
        """Of what was not synced some is lost."""
        self.note("power cut")
        self._end_process()
        end, seed = len(self.disk.ops), self._rand.randrange(1 << 30)
        images = list(sampled_images(self.disk, seed=seed, others=2, first=end, last=end))
        self.disk = images[self._rand.randrange(len(images))].disk
        self.disk.watch = lambda op: self.world.loop.note("disk", repr(op).encode())
        self.clocks.ended()

    def _end_process(self) -> None:
        self._server = None
        self._up.clear()
        self.world.net.kill("broker")
        self.world.loop.kill_process(self._process)

    # --- time -----------------------------------------------------------------------------------

    def tidy(self) -> None:
        """What no power cut can bring back any more is not kept for years."""
        forget_settled(self.disk)

    def stand_still(self, seconds: float) -> None:
        self.note("stood still")
        self.world.loop.stand_still(seconds)
        self.clocks.disturbed()

    def sleep(self, seconds: float) -> None:
        """The lid is closed: the monotonic clock stands, and the wall clock is ahead afterwards."""
        self.note("slept")
        self.clocks.set_by(int(seconds * 1000))

    def set_clock(self, by_ms: int) -> None:
        self.note("clock set ahead" if by_ms > 0 else "clock set back")
        self.clocks.set_by(by_ms)

    # --- clients --------------------------------------------------------------------------------

    async def connect(self, name: str) -> RawClient:
        """A client of the broker, as soon as one runs."""
        await self._up.wait()
        client = await RawClient.connect(self.world.net.host(name), ADDRESS, name)
        client.patience = 2.0
        return client
