"""The standard streams of a command, also where some are closed, full, or hung up.

A closed stream's number is given to the next file or socket that is opened, and what was meant for
a terminal would end up in there. So a closed one leads nowhere instead, and a command that cannot
do without it says so. Output that cannot be written ends a command with a sentence; what is said on
standard error beside the work never ends it.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import IO, TYPE_CHECKING, Final

from onceflow.errors import OnceflowError
from onceflow.runtime import take_standard_descriptors

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_closed: Final[set[int]] = set()


class StreamClosed(OnceflowError):
    """A command needs a standard stream that its parent process had closed."""


class OutputFailed(OnceflowError):
    """What a command has to say cannot be written."""


def prepare_streams() -> None:
    """For a process that is the command's, before it opens anything else."""
    _closed.update(take_standard_descriptors())
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = _text(_Output(1), sys.stdout)
    sys.stderr = _text(_Aside(2), sys.stderr)


def _text(raw: io.FileIO, before: IO[str] | None) -> io.TextIOWrapper:
    """A stream like the one that was there before."""
    encoding = getattr(before, "encoding", None) or "utf-8"
    # Names may come from arguments that are no text, and go out as they came in.
    errors = "surrogateescape" if encoding.lower() == "utf-8" else "backslashreplace"
    is_prompt = raw.fileno() == 2 or raw.isatty()
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=is_prompt
    )


class _Output(io.FileIO):
    """Standard output; fails once, by name. A peer that is slow is waited for, also where another
    process has made the stream non-blocking."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._is_over = False

    def write(self, data: ReadableBuffer) -> int:
        if self._is_over:  # the interpreter's last try, on its way out
            return memoryview(data).nbytes
        try:
            while (written := super().write(data)) is None:
                select.select((), (self,), ())
        except BrokenPipeError:
            raise
        except OSError as error:
            self._is_over = True
            raise OutputFailed(f"cannot write to standard output: {error.strerror}") from error
        return written


class _Aside(io.FileIO):
    """Standard error; a failure to write to it cannot be reported anywhere."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)

    def write(self, data: ReadableBuffer) -> int:
        try:
            while (written := super().write(data)) is None:
                select.select((), (self,), ())
        except OSError:
            return memoryview(data).nbytes
        return written


def give_up_stdout() -> None:
    """For an output whose reader has hung up: nothing may be written to it any more, not even by
    the interpreter on its way out."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def require_stdin() -> None:
    """For commands that would take a closed standard input for an empty one."""
    if 0 in _closed:
        raise StreamClosed("standard input is closed, so there are no lines to send; use --file")


def require_stdout() -> None:
    """For what must not pass for written out when it was not."""
    if 1 in _closed:
        raise StreamClosed(
            "standard output is closed, so records cannot be written out; use /dev/null to discard "
            "them"
        )
