"""A place for compiled code when there is no other: where neither the sources nor the home can be
written, as in a container whose user owns nothing.

What lies in it is loaded and run, so nobody else may have put it there: the directory belongs to
this user and to nobody else, or it is not used.
"""

from __future__ import annotations

import os
import stat
import tempfile
from functools import cache
from pathlib import Path

_ONLY_OURS = 0o700


@cache
def private_directory() -> str | None:
    """The same one at every start; None if there is none that can be written and trusted."""
    if not hasattr(os, "getuid"):
        return None
    try:
        path = Path(tempfile.gettempdir()) / f"onceflow-compiled-{os.getuid()}"
        path.mkdir(mode=_ONLY_OURS, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    is_private = stat.S_IMODE(found.st_mode) == _ONLY_OURS
    return str(path) if is_ours and is_private else None
