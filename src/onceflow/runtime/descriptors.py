"""The descriptors of this process: how many it may have open at once, and the first three."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import Final

NO_LIMIT = 1 << 30
"""Where nobody counts them."""
_LAST_STANDARD: Final = 2


def descriptor_limit() -> int:
    """The limit as it is (`ulimit -n`)."""
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_descriptor_limit() -> int:
    """Raises the limit as far as this process may, and says how far that is. For a process of our
    own only: one that calls `select` could not use what it opens beyond 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems name a hard limit that they do not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


def take_standard_descriptors() -> list[int]:
    """Lets those of the three standard streams that are closed lead nowhere, and says which they
    were. Else their numbers would be given to files and sockets: the event loop's library ends the
    process when it closes one of them, and whatever the process prints would be written to them."""
    taken = []
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        taken.append(descriptor)
    os.close(descriptor)
    return taken


def _number(limit: int) -> int:
    return NO_LIMIT if limit == resource.RLIM_INFINITY else min(limit, NO_LIMIT)
