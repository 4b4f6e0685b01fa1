"""A last resort for compiled code: where neither the sources nor the home directory are writable,
as in a container whose user owns nothing.

The process loads and runs these files, so no other user may have put them there: the directory
belongs to this user and is private, or it is not used.
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
