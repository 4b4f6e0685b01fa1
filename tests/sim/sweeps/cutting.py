"""Cutting a coroutine short at any of its awaits, as `wait_for`, a shutdown or a timeout does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from enum import Enum
from typing import Any, Final


class When(Enum):
    """At which moment of an await the task is cancelled."""

    WAITING = "as soon as it waits"
    ANSWERED = "when what it waits for is there, and it has not gone on yet"
    LATER = "some milliseconds after it has begun to wait"
    """What it waits for may be another task, which is in the midst of something then."""


_LATER_MS: Final = (1, 3, 6, 10, 15, 21)


class _Cut:
    """Awaits a coroutine, and cancels the task at its n-th await."""

    def __init__(self, work: Awaitable[Any], at: int, when: When) -> None:
        self._work = work
        self._at = at
        self._when = when
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        steps = self._work.__await__()
        send: Any = steps.send
        value: Any = None
        while True:
            try:
                waited = send(value)
            except StopIteration as end:
                return end.value
            self.awaits += 1
            if self.awaits == self._at and task is not None:
                if self._when is When.LATER:
                    later_ms = _LATER_MS[self._at % len(_LATER_MS)]
                    asyncio.get_running_loop().call_later(later_ms / 1000, task.cancel)
                elif self._when is When.WAITING or waited is None:
                    task.cancel()
                else:
                    # `Future.__await__` has marked it as one that is waited for.
                    waited.add_done_callback(lambda _: task.cancel())
            try:
                value = yield waited
                send = steps.send
            except BaseException as error:
                value, send = error, steps.throw


async def cut(work: Awaitable[Any], at: int, when: When) -> tuple[bool, Any]:
    """Whether it was cut, and what came of it: a result, or an exception. In a task of its own."""
    cutting = _Cut(work, at, when)

    async def whole() -> Any:
        return await cutting

    task = asyncio.get_running_loop().create_task(whole())
    await asyncio.wait([task])
    outcome: Any = None
    try:
        outcome = task.result()
    except BaseException as error:
        outcome = error
    return cutting.awaits >= at, outcome
