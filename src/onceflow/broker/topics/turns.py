"""Requests that change topics, one slice in each turn of the loop, with other requests in between.

They run one after the other, in the order in which they came, as in Kafka's controller: a client
that creates a topic and deletes it at once finds it there. The work of a request is a generator.
Between two of its steps anything else may happen, so whatever is half done has to be a state of its
own: see `topics.TopicMaking`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

from onceflow.broker.requests import Answer, Hangup, OrderedPromise, Slices
from onceflow.runtime import Clock

T = TypeVar("T")
Steps = Generator[int, None, T]
"""Yields after each step how much it was: 1 is what takes about as long as making a log."""

A_TURN = 16
"""So much is done at most before others have their turn: some milliseconds, where the disk does not
make it more."""
_A_TURN_SECONDS = 0.005

_log = logging.getLogger(__name__)


class _Work(Generic[T]):
    """Steps, and what to answer after the last of them."""

    def __init__(self, steps: Steps[None], answer: Callable[[], Answer[T]]) -> None:
        self._steps = steps
        self.answer = answer
        self.promise: OrderedPromise[T] = OrderedPromise()

    def do_some(self, monotonic: Callable[[], float]) -> bool:
        """As much as a turn may take; whether that was all."""
        done, until = 0, monotonic() + _A_TURN_SECONDS
        while done < A_TURN and monotonic() < until:
            try:
                done += next(self._steps)
            except StopIteration:
                return True
        return False

    def resolve(self) -> None:
        try:
            answer = self.answer()
        except Hangup:
            return  # the disk has failed: the broker stops, and hangs up on everybody
        self.promise.take_effect(answer)


class Turns:
    """Belongs to the broker's loop."""

    def __init__(self, clock: Clock, slices: Slices) -> None:
        self._monotonic = clock.monotonic
        self._slices = slices
        self._waiting: deque[_Work[object]] = deque()

    def do(self, steps: Steps[None], answer: Callable[[], Answer[T]]) -> Answer[T]:
        """Does the steps and then answers: at once, if no others wait and they fit into one
        turn, as most do."""
        work = _Work(steps, answer)
        if not self._waiting and work.do_some(self._monotonic):
            return answer()
        self._waiting.append(work)  # type: ignore[arg-type]  # whatever it answers
        self._slices.run("changes of topics", self._all_that_waits())
        return work.promise

    def _all_that_waits(self) -> Iterator[None]:
        while self._waiting:
            work = self._waiting[0]
            try:
                is_done = work.do_some(self._monotonic)
                if is_done:
                    work.resolve()
            except Exception:
                # A defect of ours: it costs that client's connection, and all others go on.
                _log.exception("internal error in a change of topics")
                if not work.promise.has_taken_effect:
                    work.promise.take_effect(Hangup("an internal error; the broker's log has more"))
                is_done = True
            if is_done:
                self._waiting.popleft()
            yield
