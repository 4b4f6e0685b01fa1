"""Counts a store's jobs in the background, so that it can wait for all of them."""

from __future__ import annotations

from collections.abc import Callable

from onceflow.runtime import Background, Done, Job, JobLane


class Jobs:
    """One store's use of a background."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._under_way = 0
        self.soon = background.soon
        self.wait = background.wait

    def submit(self, lane: JobLane, job: Job, done: Done) -> None:
        self._under_way += 1

        def ended(error: Exception | None) -> None:
            self._under_way -= 1
            done(error)

        self._background.submit(lane, job, ended)

    def wait_for_all(self, also: Callable[[], bool] = lambda: True) -> None:
        """Blocks the owner until nothing is under way and `also` holds."""
        self._background.wait(lambda: not self._under_way and also())
