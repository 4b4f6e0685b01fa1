"""Threads under an event loop: what is due soon comes without waking anybody, and never hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onceflow.runtime.background import Job, JobLane, Threads


class Posts:
    """Counts what goes through the loop, and by which way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.threadsafe = 0
        self.plain = 0

    def post(self, callback: Callable[[], None]) -> None:
        self.threadsafe += 1
        self._loop.call_soon_threadsafe(callback)

    def soon(self, callback: Callable[[], None]) -> None:
        self.plain += 1
        self._loop.call_soon(callback)


def nothing() -> Job:
    yield


def test_what_is_due_soon_goes_through_the_loop_s_own_cheap_way() -> None:
    async def main() -> None:
        posts = Posts(asyncio.get_running_loop())
        background = Threads(posts.post, posts.soon)
        seen: list[str] = []
        ended = asyncio.Event()

        def done(error: Exception | None) -> None:
            seen.append("job")
            ended.set()

        background.soon(lambda: seen.append("soon"))
        assert not seen  # never in the middle of a step
        await asyncio.sleep(0)
        assert seen == ["soon"]
        background.submit(JobLane.BULK, nothing(), done)
        await ended.wait()
        background.close()
        assert (seen, posts.plain, posts.threadsafe) == (["soon", "job"], 1, 1)

    asyncio.run(main())


def test_an_owner_that_blocks_gets_what_is_due_soon_too() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        background = Threads(loop.call_soon_threadsafe, loop.call_soon)
        seen: list[str] = []

        def start() -> None:
            background.submit(JobLane.JOURNAL, nothing(), lambda _: seen.append("job"))

        background.soon(start)
        background.wait(lambda: bool(seen))
        background.soon(lambda: seen.append("last"))
        background.close()
        await asyncio.sleep(0)  # the loop finds nothing left to do
        assert seen == ["job", "last"]

    asyncio.run(main())


def test_what_is_due_may_wait_for_something_itself() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        background = Threads(loop.call_soon_threadsafe, loop.call_soon)
        seen: list[str] = []

        def wait() -> None:
            background.submit(JobLane.BULK, nothing(), lambda _: seen.append("job"))
            background.wait(lambda: len(seen) == 2)  # which calls what is due behind this

        background.soon(wait)
        background.soon(lambda: seen.append("soon"))
        await asyncio.sleep(0)
        assert sorted(seen) == ["job", "soon"]
        background.close()

    asyncio.run(main())
