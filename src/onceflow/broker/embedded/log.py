"""Collects what each embedded broker of a process logs, without changing the program's own log.

While brokers run, the logger `onceflow.broker` is open to the level that they need. The threads of
a broker identify its records. The program sees, by its own levels and in its own handlers, exactly
what it would see without.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from onceflow.runtime import TextFormatter

MOST_LINES: Final = 2000
_BROKER: Final = "onceflow.broker"
_LOOP: Final = "asyncio"
"""Where an event loop tells of callbacks that failed."""
_UNHEARD: Final = -1
"""A level below that of any handler."""


class LogBuffer:
    """The last lines that one broker logged."""

    def __init__(self, level_name: str) -> None:
        self.level: Final[int] = logging.getLevelNamesMapping()[level_name.upper()]
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._threads: set[threading.Thread] = set()

    def adopt_thread(self) -> None:
        """What the calling thread logs is this broker's."""
        self._threads.add(threading.current_thread())

    def offer(self, record: logging.LogRecord, line: str) -> None:
        """Takes a line that the calling thread logged, if it is this broker's."""
        if record.levelno >= self.level and threading.current_thread() in self._threads:
            self._lines.append(line)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines.copy())


class _Capture(logging.Handler):
    """Offers everything to all buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self.buffers: tuple[LogBuffer, ...] = ()

    def handle(self, record: logging.LogRecord) -> bool:
        line = self.format(record)
        for buffer in self.buffers:
            buffer.offer(record, line)
        return True


class _Opening(logging.Handler):
    """Opens a logger further than the program has it, and keeps what is more from the program."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self._level_before = self._level_opened = logger.level

    def open_to(self, level: int) -> None:
        """Lets the logger make records from this level on."""
        self._level_before = self._own_level()
        # One less, to distinguish it from a level that the program sets meanwhile.
        self._level_opened = min(level - 1, self._wanted())
        self._logger.setLevel(self._level_opened)

    def close(self) -> None:
        self._logger.setLevel(self._own_level())
        super().close()

    def _own_level(self) -> int:
        """What the program has set the logger to, before or meanwhile."""
        level = self._logger.level
        return self._level_before if level == self._level_opened else level

    def _wanted(self) -> int:
        """The level from which on the program would see records."""
        parent = self._logger.parent
        inherited = parent.getEffectiveLevel() if parent else logging.NOTSET
        return self._own_level() or inherited

    def handle(self, record: logging.LogRecord) -> bool:
        # Nothing but propagation leads from here to the program's handlers, and a record cannot
        # be taken out of it; but no handler takes a record of such a level.
        if not self._is_wanted(record):
            record.levelno = _UNHEARD
        return True

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and logger is not self._logger:
            if logger.level:
                return True  # a level below ours, which the record has passed
            logger = logger.parent
        return record.levelno >= self._wanted()


class _Tap:
    """The handlers, there while at least one broker runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._capture = _Capture()
        self._opening: _Opening | None = None

    def attach(self, buffer: LogBuffer) -> None:
        with self._lock:
            self._capture.buffers += (buffer,)
            opening = self._opening or self._open()
            opening.open_to(min(each.level for each in self._capture.buffers))

    def detach(self, buffer: LogBuffer) -> None:
        with self._lock:
            left = tuple(each for each in self._capture.buffers if each is not buffer)
            self._capture.buffers = left
            if self._opening is not None and left:
                self._opening.open_to(min(each.level for each in left))
            elif self._opening is not None:
                self._close(self._opening)

    def _open(self) -> _Opening:
        logger = logging.getLogger(_BROKER)
        self._opening = _Opening(logger)
        logger.addHandler(self._capture)
        logger.addHandler(self._opening)
        logging.getLogger(_LOOP).addHandler(self._capture)
        return self._opening

    def _close(self, opening: _Opening) -> None:
        self._opening = None
        logger = logging.getLogger(_BROKER)
        logger.removeHandler(self._capture)
        logger.removeHandler(opening)
        logging.getLogger(_LOOP).removeHandler(self._capture)
        opening.close()


_tap: Final = _Tap()


def attach(buffer: LogBuffer) -> None:
    """From now on the buffer is offered what is logged."""
    _tap.attach(buffer)


def detach(buffer: LogBuffer) -> None:
    """The last one to go leaves the loggers as they were found; may be repeated."""
    _tap.detach(buffer)
