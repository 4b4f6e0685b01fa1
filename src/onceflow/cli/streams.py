"""The standard streams of a command, also where whoever started it has closed some of them.

A closed stream's number is given to the next file or socket that is opened, and what was meant for
a terminal would end up in there. So a closed one leads nowhere instead, and a command that cannot
do without it says so.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from onceflow.errors import OnceflowError
from onceflow.runtime.descriptors import take_standard_descriptors

_closed: Final[set[int]] = set()


class StreamClosed(OnceflowError):
    """A command needs a standard stream that was closed by whoever started it."""


def open_closed_streams() -> None:
    """For a process that is the command's, before it opens anything else."""
    _closed.update(take_standard_descriptors())
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def require_stdin() -> None:
    """For what would take an input that nobody gave for an empty one."""
    if 0 in _closed:
        raise StreamClosed("standard input is closed, so there are no lines to send; use --file")


def require_stdout() -> None:
    """For what must not pass for written out when it was not."""
    if 1 in _closed:
        raise StreamClosed(
            "standard output is closed, so records cannot be written out; use /dev/null if nobody "
            "wants them"
        )
