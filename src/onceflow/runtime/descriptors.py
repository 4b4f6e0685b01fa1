"""The descriptors of this process: how many it may have open at once, and the first three."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import Final

NO_LIMIT = 1 << 30
"""Stands for an unlimited number."""
_LAST_STANDARD: Final = 2


def descriptor_limit() -> int:
    """The limit as it is (`ulimit -n`)."""
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_descriptor_limit() -> int:
    """Raises the limit as far as this process may, and returns it. Only for a process of our own:
    an application that calls `select` could not use descriptors beyond 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems name a hard limit that they do not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


def take_standard_descriptors() -> list[int]:
    """Opens /dev/null for each standard stream that is closed, and returns their numbers. Files and
    sockets would otherwise get these numbers: the event loop's library ends the process when it
    closes one of them, and everything that the process prints would be written into them."""
    taken = []
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        taken.append(descriptor)
    os.close(descriptor)
    return taken


def _number(limit: int) -> int:
    return NO_LIMIT if limit == resource.RLIM_INFINITY else min(limit, NO_LIMIT)
