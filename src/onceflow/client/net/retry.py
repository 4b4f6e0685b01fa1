"""Retries within bounds; the table in `errors.table` says which errors are worth one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from onceflow.client.errors import Action, ClientError, action_for
from onceflow.client.events import REQUESTS, EventLogger
from onceflow.runtime import Rand

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

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


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    refresh: Callable[[], Awaitable[None]],
    policy: RetryPolicy,
    rand: Rand,
) -> T:
    """The result of the first attempt that succeeds; the last error when time is up."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = began + policy.total_s
    backoff = Backoff(policy, rand)
    trying = Trying(REQUESTS)
    action = Action.RETRY
    while True:
        try:
            if action is Action.REFRESH:
                await refresh()
            return await attempt()
        except ClientError as error:
            action = action_for(error)
            pause = backoff.next_s()
            if action not in _WORTH_IT or loop.time() + pause > deadline:
                raise
            trying.again(error, pause, loop.time() - began)
        await asyncio.sleep(pause)


async def retrying_each(
    attempt: Callable[[list[K]], Awaitable[Mapping[K, ClientError]]],
    wanted: Callable[[], list[K]],
    refresh: Callable[[], Awaitable[None]],
    policy: RetryPolicy,
    rand: Rand,
) -> None:
    """Calls `attempt` until nothing is `wanted`; it returns the keys that failed, with their
    errors. A key that fails does not hold up the others. Raises an error that is not worth a retry,
    or the last one when time is up."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    backoff = Backoff(policy, rand)
    trying = Trying(REQUESTS)
    needs_refresh = False
    while now := wanted():
        errors: Mapping[K, ClientError]
        try:
            if needs_refresh:
                await refresh()
            errors = await attempt(now)
        except ClientError as error:
            errors = dict.fromkeys(now, error)
        actions = {action_for(error): error for error in errors.values()}
        hopeless = [error for action, error in actions.items() if action not in _WORTH_IT]
        pause = backoff.next_s()
        if actions and (hopeless or loop.time() + pause > began + policy.total_s):
            raise (hopeless or list(actions.values()))[0]
        needs_refresh = Action.REFRESH in actions
        for failure in actions.values():
            trying.again(failure, pause, loop.time() - began)
        if wanted():
            await asyncio.sleep(pause)
