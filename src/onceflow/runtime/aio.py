"""Durable writes without a thread: Linux's asynchronous I/O, with completions on an event loop.

A write to a file that was opened for direct, synchronous I/O is handed to the kernel, which says by
an eventfd when it is on stable storage. That saves handing the work to a thread and back, which
under load costs as much as half of the write itself: whoever comes back needs the interpreter's
lock. Where the kernel or the file system has no such thing, `open` gives None or `takes` says no,
and a thread does the work.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable
from typing import Final

from onceflow.errors import DiskError, DiskFailed, InvariantViolated
from onceflow.runtime.disk import DurableWrite, RealFile, named_disk_error

_SETUP, _DESTROY, _GET_EVENTS, _SUBMIT = {
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
}.get(platform.machine(), (None, None, None, None))
_WRITE: Final = 1
_TELL_EVENTFD: Final = 1
_QUEUE: Final = 8


class _Request(ctypes.Structure):
    """The kernel's `struct iocb`, little-endian."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("flags_of_write", ctypes.c_uint32),
        ("operation", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("file", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("position", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """The kernel's `struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


Done = Callable[[Exception | None], None]


class Aio:
    """One write at a time; belongs to one thread."""

    def __init__(self, context: ctypes.c_ulong) -> None:
        self._context = context
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._request = _Request(operation=_WRITE, flags=_TELL_EVENTFD, eventfd=self._eventfd)
        self._requests = (ctypes.POINTER(_Request) * 1)(ctypes.pointer(self._request))
        self._events = (_Event * 1)()
        self._under_way: tuple[DurableWrite, Done] | None = None
        self._is_refused = False

    @classmethod
    def open(cls) -> Aio | None:
        """None where the system has none to give."""
        if _SETUP is None:
            return None
        context = ctypes.c_ulong(0)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(_SETUP, _QUEUE, ctypes.byref(context)) != 0:
            return None
        return cls(context)

    def fileno(self) -> int:
        """Readable when `collect` has something to do."""
        return self._eventfd

    @property
    def is_busy(self) -> bool:
        return self._under_way is not None

    @staticmethod
    def takes(write: DurableWrite) -> bool:
        """Whether the write goes past the page cache; others would block in the kernel."""
        return isinstance(write.file, RealFile) and write.file.is_direct

    def submit(self, write: DurableWrite, done: Done) -> None:
        """Begins the write; `collect` calls `done`. One that the kernel refuses to begin is done
        there, blocking."""
        if self._under_way is not None or not isinstance(write.file, RealFile):
            raise InvariantViolated("one-direct-write-at-a-time")
        request = self._request
        request.file = write.file.fileno()
        request.buffer = ctypes.addressof(ctypes.c_char.from_buffer(write.data))
        request.size = len(write.data)
        request.position = write.position
        self._under_way = (write, done)
        if self._libc.syscall(_SUBMIT, self._context, 1, self._requests) != 1:
            os.eventfd_write(self._eventfd, 1)
            self._events[0].result = 0  # nothing was written: all of it is the rest
            self._is_refused = True

    def collect(self, *, wait: bool = False) -> None:
        """Calls `done` of the write that has ended, if it has; `wait` blocks until it has."""
        if self._under_way is None:
            return
        if not self._is_refused and not self._has_ended(wait):
            return
        self._is_refused = False
        self._drain()
        (write, done), self._under_way = self._under_way, None
        done(self._outcome(write, self._events[0].result))

    def _has_ended(self, wait: bool) -> bool:
        least = 1 if wait else 0
        time = None if wait else ctypes.byref(_NO_TIME)
        got: int = self._libc.syscall(_GET_EVENTS, self._context, least, 1, self._events, time)
        if got < 0 and ctypes.get_errno() != errno.EINTR:
            raise DiskFailed(f"asynchronous I/O: {os.strerror(ctypes.get_errno())}")
        return got == 1

    def _drain(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return

    @staticmethod
    def _outcome(write: DurableWrite, result: int) -> Exception | None:
        if result == len(write.data):
            return None
        if result < 0:
            error = OSError(-result, os.strerror(-result))
            return named_disk_error(error, "write", write.file.path)
        try:
            write.file.pwrite_durable(write.position + result, write.data[result:])
        except DiskError as failure:
            return failure
        return None

    def close(self) -> None:
        """Waits for a write that is under way."""
        while self.is_busy:
            self.collect(wait=True)
        self._libc.syscall(_DESTROY, self._context)
        os.close(self._eventfd)


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_NO_TIME = _Time(0, 0)
