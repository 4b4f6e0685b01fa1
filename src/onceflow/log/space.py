"""Room on the data disk, with a reserve for what must never be refused."""

from __future__ import annotations

from onceflow.errors import DiskFull
from onceflow.runtime import Disk

_LOOK_AGAIN_BYTES = 8 << 20


class Space:
    """Asks the disk now and then, not for every append."""

    def __init__(self, disk: Disk, reserve_bytes: int) -> None:
        self._disk = disk
        self._reserve = reserve_bytes
        self._left = 0

    def free_bytes(self) -> int:
        """What is free beyond the reserve; negative when that is touched."""
        return self._disk.free_bytes() - self._reserve

    def take(self, size: int) -> None:
        """Raises `DiskFull` when so much may not be written."""
        self._left -= size
        if self._left >= 0:
            return
        free = self.free_bytes()
        if free < size:
            raise DiskFull(
                f"{free + self._reserve} bytes are free on the data disk and {self._reserve} are "
                "kept in reserve; make room, then go on"
            )
        # Others use the disk too: look again before half of what is left has been taken.
        self._left = min((free - size) // 2, _LOOK_AGAIN_BYTES)
