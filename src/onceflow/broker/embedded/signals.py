"""A signal that ends the whole program must not leave an embedded broker's temporary data behind.

SIGTERM and SIGHUP end a Python program on the spot: no block is left, nothing registered for the
exit runs. Where the program has no handler of its own, ours removes what is temporary and then lets
the signal do what it does anyway, so the program ends as soon, and with the same status, as without
a broker. It stops nothing in an orderly way and waits for no lock: it may run in the midst of
anything that the main thread does.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_cleanups: Final[dict[Callable[[], None], int]] = {}
"""Each cleanup and the process it belongs to: a forked child must not remove its parent's data."""


@contextmanager
def done_when_signalled(cleanup: Callable[[], None]) -> Iterator[None]:
    """Until the block is left, `cleanup` is called when a signal ends the program. Only the main
    thread can set that up: `watch_signals` on it does so for a block that another one enters."""
    watch_signals()
    _cleanups[cleanup] = os.getpid()
    try:
        yield
    finally:
        _cleanups.pop(cleanup, None)
        if not _cleanups:
            _unwatch_signals()


def watch_signals() -> None:
    """Leaves signals alone that the program handles, or ignores."""
    if threading.current_thread() is threading.main_thread():
        for each in _SIGNALS:
            if signal.getsignal(each) is signal.SIG_DFL:
                signal.signal(each, _end)


def _unwatch_signals() -> None:
    # On another thread the handler stays: with nothing to clean up it does what the default does.
    if threading.current_thread() is threading.main_thread():
        for each in _SIGNALS:
            if signal.getsignal(each) is _end:
                signal.signal(each, signal.SIG_DFL)


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # the same signal once more ends it at once
    for cleanup, owner in list(_cleanups.items()):
        if owner == os.getpid():
            cleanup()
    os.kill(os.getpid(), number)
