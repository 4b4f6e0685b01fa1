"""What the system says of a process that runs a broker."""

from __future__ import annotations

import re
import time
from pathlib import Path

SECONDS = 30.0
LOOK_SECONDS = 0.05


class ProcessWatch:
    """Looks at a process; made when it has no clients."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")
        self._own_sockets = self._sockets

    @property
    def resident_bytes(self) -> int:
        """Memory of its own that the system has given it: files that it maps do not count."""
        found = re.search(r"RssAnon:\s+(\d+) kB", (self._proc / "status").read_text())
        assert found is not None
        return int(found[1]) << 10

    @property
    def _sockets(self) -> int:
        found = 0
        for each in (self._proc / "fd").iterdir():
            try:
                found += str(each.readlink()).startswith("socket:")
            except FileNotFoundError:  # closed since it was listed
                continue
        return found

    def wait_until_all_are_gone(self) -> None:
        """Returns when the process has seen that its clients are."""
        end = time.monotonic() + SECONDS
        while self._sockets > self._own_sockets:
            assert time.monotonic() < end, f"{self._sockets} sockets are still open"
            time.sleep(LOOK_SECONDS)
