"""Interrupts a thread in each of its waits, one after the other, as a signal would."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from onceflow.blocking import loop as loop_module


class Interrupted(Exception):
    """What a handler of a signal may raise."""


def interrupt_waits(
    monkeypatch: pytest.MonkeyPatch, strikes: Callable[[int], bool], *, answered: bool
) -> list[int]:
    """Each wait of this thread that `strikes` ends with an exception: before the answer is there,
    or when it is and nobody has it yet. How many waits there were."""
    original = loop_module.wait_for
    here, count = threading.current_thread(), [0]

    def wait_for(waiting: loop_module.Waiting[Any], timeout_s: float | None) -> Any:
        if threading.current_thread() is not here:
            return original(waiting, timeout_s)
        count[0] += 1
        if not strikes(count[0]):
            return original(waiting, timeout_s)
        if answered:
            with suppress(BaseException):
                original(waiting, timeout_s)
        raise Interrupted

    monkeypatch.setattr(loop_module, "wait_for", wait_for)
    return count


@contextmanager
def alarms(every_s: float) -> Iterator[list[bool]]:
    """They ring while the list says that somebody catches what they raise, and that only once."""
    is_armed = [False]

    def ring(*_: Any) -> None:
        if is_armed[0]:
            is_armed[0] = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield is_armed
    finally:
        is_armed[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
