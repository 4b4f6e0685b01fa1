"""A journal that makes nothing durable until the test lets it."""

from __future__ import annotations

from collections.abc import Callable

from onceflow.runtime.background import Background, Done, Job, JobLane


class HeldJournal:
    """Lets everything happen but the writes of the journal, until `release`."""

    lane = JobLane.JOURNAL

    def __init__(self, inner: Background) -> None:
        self._inner = inner
        self._held: list[tuple[Job, Done]] = []
        self.is_holding = False

    def submit(self, lane: JobLane, job: Job, done: Done) -> None:
        if self.is_holding and lane is self.lane:
            self._held.append((job, done))
        else:
            self._inner.submit(lane, job, done)

    def release(self) -> None:
        self.is_holding = False
        held, self._held = self._held, []
        for job, done in held:
            self._inner.submit(self.lane, job, done)

    def soon(self, callback: Callable[[], None]) -> None:
        self._inner.soon(callback)

    def wait(self, until: Callable[[], bool]) -> None:
        self._inner.wait(until)

    def close(self) -> None:
        self._inner.close()
