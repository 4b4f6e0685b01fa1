"""Trying again, within bounds: which errors are worth it is said by the table in `errors`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from onceflow.client.errors import Action, ClientError, action_for
from onceflow.runtime.rand import Rand

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """For how long, and with which pauses."""

    total_s: float = 30.0
    first_pause_s: float = 0.05
    longest_pause_s: float = 1.0


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    refresh: Callable[[], Awaitable[None]],
    policy: RetryPolicy,
    rand: Rand,
) -> T:
    """The result of the first attempt that succeeds; the last error when time is up.

    Pauses double up to the longest and are drawn a little apart, so that many clients of a broker
    that comes back do not all ask at once.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + policy.total_s
    pause = policy.first_pause_s
    action = Action.RETRY
    while True:
        try:
            if action is Action.REFRESH:
                await refresh()
            return await attempt()
        except ClientError as error:
            action = action_for(error)
            if action is Action.FAIL or loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause * rand.uniform(0.8, 1.2))
        pause = min(2 * pause, policy.longest_pause_s)
