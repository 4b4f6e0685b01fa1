"""Modules that threads load, in a program that may fork meanwhile.

A forked child has only the thread that forked. A module that another thread was just loading stays
half loaded there for ever: whoever imports it waits for a thread that does not exist, or finds half
of it. So what the broker's threads load, they load under the lock `loading`, and a fork takes that
lock first.
"""

from __future__ import annotations

import os
import threading
from typing import Final

loading: Final = threading.RLock()
"""Held for one import, never while waiting for anything else: a fork waits for it. It may be taken
twice by a thread: one module loads another, and may itself fork."""

os.register_at_fork(
    before=loading.acquire, after_in_parent=loading.release, after_in_child=loading.release
)
