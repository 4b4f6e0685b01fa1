"""A disk with little room for a broker, and what of it is in use."""

from __future__ import annotations

from typing import Any

from onceflow.testing.disk import SimDisk

TIGHT: dict[str, Any] = {"journal_largest_file_bytes": 64 << 10, "journal_files": 2}


def used(disk: SimDisk) -> int:
    disk.capacity = 1 << 62
    return (1 << 62) - disk.free_bytes()
