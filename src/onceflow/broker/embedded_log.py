"""What each embedded broker of a process logged, and nobody else's log changed by it.

The logger `onceflow.broker` is opened as far as the brokers want to be heard, and each of them is
told apart by the threads that it runs on. What the program itself gets to see, in its handlers
and by its levels, is what it would have seen without.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from onceflow.broker.logs import TextFormatter

MOST_LINES: Final = 2000
_BROKER: Final = "onceflow.broker"
_LOOP: Final = "asyncio"
"""Where an event loop tells of callbacks that failed."""


class LogBuffer:
    """The last lines that one broker logged."""

    def __init__(self, level_name: str) -> None:
        self.level: Final[int] = logging.getLevelNamesMapping()[level_name.upper()]
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._threads: set[int] = set()

    def adopt_thread(self) -> None:
        """What the calling thread logs is this broker's."""
        self._threads.add(threading.get_ident())

    def offer(self, record: logging.LogRecord, line: str) -> None:
        """Takes a line that the calling thread logged, if it is this broker's."""
        if record.levelno >= self.level and threading.get_ident() in self._threads:
            self._lines.append(line)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines.copy())


class _Capture(logging.Handler):
    """Offers everything to all buffers. Needs no lock, as the stream handlers do."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self.buffers: tuple[LogBuffer, ...] = ()

    def handle(self, record: logging.LogRecord) -> bool:
        line = self.format(record)
        for buffer in self.buffers:
            buffer.offer(record, line)
        return True


class _Forward(logging.Handler):
    """Stands for propagation: hands on what the program's own levels let through."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self._level_before = logger.level
        self._level_set = logger.level
        self._propagated_before = logger.propagate
        logger.propagate = False

    def open_to(self, level: int) -> None:
        """Lets the logger make records from this level on."""
        self._notice_change()
        self._level_set = min(level, self._wanted())
        self._logger.setLevel(self._level_set)

    def restore(self) -> None:
        self._notice_change()
        self._logger.setLevel(self._level_before)
        self._logger.propagate = self._propagated_before

    def _notice_change(self) -> None:
        """The program may have set a level of its own since."""
        if self._logger.level != self._level_set:
            self._level_before = self._level_set = self._logger.level

    def _wanted(self) -> int:
        parent = self._logger.parent
        inherited = parent.getEffectiveLevel() if parent else logging.NOTSET
        return self._level_before or inherited

    def handle(self, record: logging.LogRecord) -> bool:
        parent = self._logger.parent
        if parent is not None and self._propagated_before and self._is_wanted(record):
            parent.callHandlers(record)
        return True

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        self._notice_change()
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
        self._forward: _Forward | None = None

    def attach(self, buffer: LogBuffer) -> None:
        with self._lock:
            self._capture.buffers += (buffer,)
            if self._forward is None:
                self._open()
            self._adjust()

    def detach(self, buffer: LogBuffer) -> None:
        with self._lock:
            self._capture.buffers = tuple(
                each for each in self._capture.buffers if each is not buffer
            )
            if self._capture.buffers:
                self._adjust()
            else:
                self._close()

    def _open(self) -> None:
        logger = logging.getLogger(_BROKER)
        self._forward = _Forward(logger)
        logger.addHandler(self._forward)
        logger.addHandler(self._capture)
        logging.getLogger(_LOOP).addHandler(self._capture)

    def _adjust(self) -> None:
        if self._forward is not None:
            self._forward.open_to(min(each.level for each in self._capture.buffers))

    def _close(self) -> None:
        forward, self._forward = self._forward, None
        if forward is None:
            return
        logger = logging.getLogger(_BROKER)
        logger.removeHandler(forward)
        logger.removeHandler(self._capture)
        logging.getLogger(_LOOP).removeHandler(self._capture)
        forward.restore()


_tap: Final = _Tap()


def attach(buffer: LogBuffer) -> None:
    """From now on the buffer is offered what is logged."""
    _tap.attach(buffer)


def detach(buffer: LogBuffer) -> None:
    """The last one to go leaves the loggers as they were found; may be repeated."""
    _tap.detach(buffer)
