"""What a broker's process takes: memory, descriptors, threads, disk, and what its census counts."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.soak.flatness import Point

MEMORY, DESCRIPTORS, THREADS = "memory (MiB)", "descriptors", "threads"
DISK, JOURNAL = "disk (MiB)", "journal (MiB)"
LOOKED_AT = (MEMORY, DESCRIPTORS, THREADS, DISK, JOURNAL)
"""From outside, whatever the process says of itself."""
MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class Sample(NamedTuple):
    """One look at the process and its data directory."""

    at: float
    cpu_s: float
    values: dict[str, float]


def look(pid: int, data_dir: Path, census: Path, at: float) -> Sample:
    """From outside, but for the census, which the process writes to a file of its own."""
    process = Path(f"/proc/{pid}")
    values: dict[str, float] = {
        MEMORY: _resident(process) / MIB,
        DESCRIPTORS: _entries(process / "fd"),
        THREADS: _entries(process / "task"),
        DISK: _taken(data_dir) / MIB,
        JOURNAL: _taken(data_dir / "journal") / MIB,
    }
    with suppress(FileNotFoundError):
        values |= json.loads(census.read_text())
    return Sample(at, _cpu_seconds(process), values)


def _entries(directory: Path) -> int:
    return sum(1 for _ in directory.iterdir())


def _resident(process: Path) -> int:
    return int((process / "statm").read_text().split()[1]) * _PAGE


def _cpu_seconds(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _taken(directory: Path) -> int:
    """The blocks of all files below; some may go meanwhile."""
    taken = 0
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                taken += facts.st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    taken += _taken(Path(entry.path))
    return taken


def series_of(samples: list[Sample]) -> dict[str, list[Point]]:
    """By name; what is not counted in a sample was not there."""
    names = {name for sample in samples for name in sample.values}
    return {
        name: [Point(sample.at, sample.values.get(name, 0)) for sample in samples]
        for name in sorted(names)
    }
