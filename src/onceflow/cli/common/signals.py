"""How a command is interrupted: by Ctrl-C, SIGTERM or SIGHUP, all in the same way.

The first one lets the command leave its blocks: a member leaves its group, a transaction is
aborted. The second one ends it at once. A signal that the parent process set to be ignored, as
`nohup` does, stays ignored. Commands that serve have handlers of their own.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STATUS: Final = 128
"""What a shell adds to the number of a signal."""
_HOLD_UP_SECONDS: Final = 1.0


class _Interruption:
    """Of this process."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.task: asyncio.Task[Any] | None = None
        """What runs on the main thread's loop, if anything does. It is cancelled: an exception in
        the midst of the loop would hit any task that happens to run."""
        self.is_held_up = False


_interruption: Final = _Interruption()


def not_ignored() -> list[signal.Signals]:
    """Those of `SIGNALS` that this process may handle."""
    return [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]


def catch_signals() -> None:
    """From now on; for the main thread of a process that is the command's."""
    for each in not_ignored():
        signal.signal(each, _first)


def status_after(status: int) -> int:
    """What the process ends with, where the command has ended with `status`."""
    return status if _interruption.number is None else _STATUS + _interruption.number


def run_in(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """As `runner.run`; a signal cancels the work, and then is a `KeyboardInterrupt`."""
    import asyncio

    async def watched() -> T:
        _interruption.task = asyncio.current_task()
        try:
            return await work
        finally:
            _interruption.task = None

    try:
        return runner.run(watched())
    except asyncio.CancelledError:
        if _interruption.number is None:
            raise
        raise KeyboardInterrupt from None


@contextmanager
def hold_up() -> Iterator[None]:
    """A signal waits until the block is left: for writing something out and taking note of it. Not
    for long, though: the reader of the output may have stopped reading."""
    _interruption.is_held_up = True
    try:
        yield
    finally:
        _interruption.is_held_up = False
        if _interruption.number is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
    if _interruption.number is not None:
        raise KeyboardInterrupt


def _first(number: int, frame: object) -> None:
    for each in not_ignored():
        signal.signal(each, _second)
    _interruption.number = number
    task = _interruption.task
    if _interruption.is_held_up:
        signal.signal(signal.SIGALRM, _held_up_too_long)
        signal.setitimer(signal.ITIMER_REAL, _HOLD_UP_SECONDS)
        return
    if task is None:
        raise KeyboardInterrupt
    task.cancel()
    task.get_loop().call_soon_threadsafe(_nothing)  # else the loop may sleep on


def _held_up_too_long(number: int, frame: object) -> None:
    if _interruption.is_held_up:
        raise KeyboardInterrupt


def _second(number: int, frame: object) -> None:
    os._exit(_STATUS + number)


def _nothing() -> None:
    """Wakes a loop up."""
