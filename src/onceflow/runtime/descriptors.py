"""How many files and sockets this process may have open at once."""

from __future__ import annotations

import resource
from contextlib import suppress

NO_LIMIT = 1 << 30
"""Where nobody counts them."""


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


def _number(limit: int) -> int:
    return NO_LIMIT if limit == resource.RLIM_INFINITY else min(limit, NO_LIMIT)
