"""Retries within bounds; the table in `errors.table` says which errors are worth one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from onceflow.client.errors import Action, ClientError, action_for
from onceflow.client.events import REQUESTS, EventLogger
from onceflow.runtime import Rand

_WORTH_IT: Final = (Action.RETRY, Action.REFRESH)
_LONG_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """For how long, and with which pauses."""

    total_s: float = 30.0
    first_pause_s: float = 0.05
    longest_pause_s: float = 1.0


TRANSACTIONAL: Final = RetryPolicy(total_s=60.0, first_pause_s=0.005, longest_pause_s=0.1)
"""The first Produce to a partition and the first calls after a commit are often refused for a few
milliseconds: long pauses there cost more than the work."""


class Backoff:
    """The pauses between the attempts of one operation.

    They double up to the longest and vary a little at random, so that many clients of a broker that
    comes back do not all ask at once.
    """

    __slots__ = ("_pause", "_policy", "_rand")

    def __init__(self, policy: RetryPolicy, rand: Rand) -> None:
        self._policy = policy
        self._rand = rand
        self._pause = policy.first_pause_s

    def next_s(self) -> float:
        """The next pause."""
        pause = self._pause
        self._pause = min(2 * pause, self._policy.longest_pause_s)
        return pause * self._rand.uniform(0.8, 1.2)

    def reset(self) -> None:
        """After a success: the next failure starts with a short pause again."""
        self._pause = self._policy.first_pause_s


class Trying:
    """Logs the retries of one operation: each at DEBUG, and one at INFO when it takes so long that
    the user may wonder."""

    __slots__ = ("_floor", "_is_told")

    def __init__(self, floor: EventLogger) -> None:
        self._floor = floor
        self._is_told = False

    def again(self, error: ClientError, pause_s: float, since_s: float) -> None:
        """Logs that it has failed for `since_s`, and is retried after the pause."""
        is_news = since_s >= _LONG_S and not self._is_told
        self._is_told = self._is_told or is_news
        self._floor.tell(
            logging.INFO if is_news else logging.DEBUG,
            "again",
            "tried again for %(since_s).1f s: %(reason)s",
            reason=str(error),
            since_s=round(since_s, 3),
            pause_s=round(pause_s, 3),
        )


class Attempts:
    """The attempts of one operation: whether there is another one, after which pause, and whether
    leaders and coordinators have to be looked up again before it."""

    __slots__ = ("_backoff", "_began", "_monotonic", "_trying", "deadline", "must_refresh")

    def __init__(
        self,
        policy: RetryPolicy,
        monotonic: Callable[[], float],
        rand: Rand,
        events: EventLogger = REQUESTS,
    ) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._backoff = Backoff(policy, rand)
        self._trying = Trying(events)
        self.deadline = self._began + policy.total_s
        self.must_refresh = False

    def pause_after(self, errors: Iterable[ClientError]) -> float:
        """The pause before the next attempt; raises an error that is not worth one, or the first of
        them when time is up."""
        by_action = {action_for(error): error for error in errors}
        hopeless = [error for action, error in by_action.items() if action not in _WORTH_IT]
        pause_s, now = self._backoff.next_s(), self._monotonic()
        if by_action and (hopeless or now + pause_s > self.deadline):
            raise (hopeless or list(by_action.values()))[0]
        self.must_refresh = Action.REFRESH in by_action
        for error in by_action.values():
            self._trying.again(error, pause_s, now - self._began)
        return pause_s


def is_worth_it(error: ClientError) -> bool:
    """Whether asking again may help."""
    return action_for(error) in _WORTH_IT
