"""Retries in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TypeVar

from onceflow.client.errors import ClientError
from onceflow.client.net.retry import Attempts, RetryPolicy
from onceflow.runtime import Rand

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    refresh: Callable[[], Awaitable[None]],
    policy: RetryPolicy,
    rand: Rand,
) -> T:
    """The result of the first attempt that succeeds; the last error when time is up."""
    attempts = Attempts(policy, asyncio.get_running_loop().time, rand)
    while True:
        try:
            if attempts.must_refresh:
                await refresh()
            return await attempt()
        except ClientError as error:
            pause_s = attempts.pause_after((error,))
        await asyncio.sleep(pause_s)


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
    attempts = Attempts(policy, asyncio.get_running_loop().time, rand)
    while now := wanted():
        errors: Mapping[K, ClientError]
        try:
            if attempts.must_refresh:
                await refresh()
            errors = await attempt(now)
        except ClientError as error:
            errors = dict.fromkeys(now, error)
        pause_s = attempts.pause_after(errors.values())
        if wanted():
            await asyncio.sleep(pause_s)
