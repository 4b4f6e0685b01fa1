"""Modules that threads load, in a program that may fork meanwhile.

A forked child has only the thread that forked. A module that another thread was just loading stays
half loaded there for ever: an import of it waits for a thread that does not exist, or gets half of
it. So the broker's threads mark their imports (`with loading:`), and a fork waits until there are
none. They do not wait for one another: a heavy module that is loaded ahead must not hold up
requests.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Final


class Loading:
    """The threads that are loading now. Hold it for one import, and never while waiting for
    anything else: a fork waits for it. A thread may enter it twice: one module loads another, and
    may itself fork.
    """

    def __init__(self) -> None:
        self._turn: Final = threading.Condition(threading.RLock())
        self._threads: Final[Counter[int]] = Counter()

    def __enter__(self) -> None:
        with self._turn:
            self._threads[threading.get_ident()] += 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        with self._turn:
            self._threads[me] -= 1
            if not self._threads[me]:
                del self._threads[me]
                self._turn.notify_all()

    def hold_up(self) -> None:
        """Returns when no other thread loads anything; none begins to until `go_on`."""
        me = threading.get_ident()
        self._turn.acquire()
        self._turn.wait_for(lambda: not self._threads.keys() - {me})

    def go_on(self) -> None:
        self._turn.release()


loading: Final = Loading()


class OneAtATime:
    """Loading of modules that one thread at a time may load; a thread may enter it twice."""

    def __init__(self) -> None:
        self._turn: Final = threading.RLock()

    def __enter__(self) -> None:
        loading.__enter__()
        self._turn.acquire()

    def __exit__(self, *_: object) -> None:
        self._turn.release()
        loading.__exit__()


message_library: Final = OneAtATime()
"""Every late import from the message library happens within this: in the broker's threads, and in
clients in the same process. Its packages load their modules and its modules their packages, so two
threads that come from both ends wait for each other; Python then breaks the deadlock by failing one
of the imports."""

os.register_at_fork(
    before=loading.hold_up, after_in_parent=loading.go_on, after_in_child=loading.go_on
)
