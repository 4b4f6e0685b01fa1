"""The simulated twin of `Threads`: jobs advance step by step, in an order that a seed decides."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial

from onceflow.runtime import Done, DurableWrite, Job, JobLane, outcome_of
from onceflow.testing.loop import SimulationDeadlock
from onceflow.testing.rand import SimRand


class SimBackground:
    """Nothing happens until `step` or `wait` lets it happen.

    In a simulated loop `later` lets the loop call `step` whenever there is something to do. Some
    durable writes are done at once, as by `Threads`: none, all or some, as the seed says. They are
    drawn from a stream of their own: where there are none, all else is as if there never were.
    """

    def __init__(
        self,
        rand: random.Random | SimRand,
        later: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        self._rand = rand
        self._later = later
        self._writes = _stream_beside(rand)
        self._at_once = share_at_once(self._writes)
        self._lanes: dict[JobLane, deque[tuple[Job, Done]]] = {lane: deque() for lane in JobLane}
        self._soon: deque[Callable[[], None]] = deque()

    def submit(self, lane: JobLane, job: Job, done: Done) -> None:
        if isinstance(job, DurableWrite) and self._writes.randrange(2) < self._at_once:
            done(outcome_of(job))
            return
        self._lanes[lane].append((job, done))
        self._call_later()

    def soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)
        self._call_later()

    def _call_later(self) -> None:
        if self._later is not None:
            self._later(self.step)

    def step(self) -> bool:
        """Lets one thing happen: a callback, or one step of one lane's first job."""
        choices: list[Callable[[], None]] = [
            partial(self._advance, lane) for lane, jobs in self._lanes.items() if jobs
        ]
        if self._soon:
            choices.append(self._call_soonest)
        if not choices:
            return False
        choices[self._rand.randrange(len(choices))]()
        return True

    def _call_soonest(self) -> None:
        self._soon.popleft()()

    def _advance(self, lane: JobLane) -> None:
        job, done = self._lanes[lane][0]
        error: Exception | None = None
        try:
            next(job)
            self._call_later()
            return
        except StopIteration:
            pass
        except Exception as failure:  # handed to `done`: the owner decides
            error = failure
        self._lanes[lane].popleft()
        done(error)

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            if not self.step():
                raise SimulationDeadlock("the owner waits, and nothing is under way")

    def close(self) -> None:
        while self.step():
            pass


def share_at_once(rand: random.Random | SimRand) -> int:
    """Of every two durable writes so many are done at once, on average."""
    return rand.randrange(3)


def _stream_beside(rand: random.Random | SimRand) -> random.Random | SimRand:
    """Draws that leave `rand` as it is."""
    if not isinstance(rand, random.Random):
        return rand.fork("durable writes")
    beside = random.Random()
    beside.setstate(rand.getstate())
    return beside
