"""Long work on the broker's loop, one slice in each turn: the broker serves requests in between.

For work on state that belongs to the loop and so cannot go to a thread. The work is a generator,
and each `yield` lets one turn of the loop pass. What it looked up before a `yield` may be wrong
after it: a topic may be deleted, an id used again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator

from onceflow.log import BLAMELESS
from onceflow.runtime import TimerHandle

_log = logging.getLogger(__name__)


CallLater = Callable[[float, Callable[[], None]], TimerHandle]


class Slices:
    """All such work of a broker, each piece in turn."""

    def __init__(self, call_later: CallLater, report: Callable[[str, Exception], None]) -> None:
        """`report` gets the errors that are not `BLAMELESS`, with the name of the work."""
        self._call_later = call_later
        self._report = report
        self._waiting: deque[tuple[str, Iterator[None]]] = deque()
        self._names: set[str] = set()
        self._timer: TimerHandle | None = None
        self._is_closed = False

    def run(self, name: str, work: Iterator[None]) -> None:
        """Begins with the next turn, unless work of that name is still under way. An error ends
        this work and no other."""
        if name not in self._names:
            self._names.add(name)
            self._waiting.append((name, work))
            self._schedule()

    def close(self) -> None:
        """Drops the work that is left."""
        self._is_closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if self._timer is None and self._waiting and not self._is_closed:
            self._timer = self._call_later(0, self._turn)

    def _turn(self) -> None:
        self._timer = None
        name, work = self._waiting.popleft()
        if self._is_done(name, work):
            self._names.discard(name)
        else:
            self._waiting.append((name, work))
        self._schedule()

    def _is_done(self, name: str, work: Iterator[None]) -> bool:
        try:
            next(work)
        except StopIteration:
            return True
        except BLAMELESS as error:  # no room on the disk, for example
            _log.warning("%s failed: %s", name, error)
            return True
        except Exception as error:
            self._report(name, error)
            return True
        return False
