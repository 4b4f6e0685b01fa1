"""CRC-32C, the checksum of record batches, journal groups and checkpoints.

From awscrt: it uses the widest instructions the processor has, which makes it two to three times
as fast from 4 KiB on as what one crc32 instruction at a time can do. It is loaded when the first
checksum is asked for, because that takes as long as importing a whole client does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Buffer = bytes | bytearray | memoryview


class _Library:
    """Puts the real function in its own place when it is first called."""

    __slots__ = ("crc32c",)

    def __init__(self) -> None:
        self.crc32c: Callable[[Buffer, int], int] = self._load

    def _load(self, data: Buffer, previous: int) -> int:
        from awscrt import checksums

        self.crc32c = checksums.crc32c
        return self.crc32c(data, previous)


_library: Final = _Library()


def crc32c(data: Buffer, previous: int = 0, /) -> int:
    """Of `data`, or of what `previous` is the checksum of and `data` behind it."""
    return _library.crc32c(data, previous)
