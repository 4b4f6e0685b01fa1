"""When the rows of a topic became visible: read from the log of Apache Kafka, after the run.

A commit marker in a partition is what shows a transaction's rows to readers of committed data, and
carries the broker's time. Reading the headers of batches from the broker's files costs the run
nothing, as a reader beside it would, and is the same for every engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.common.targets import BenchError
from onceflow.records.batch import HEADER_SIZE, StoredBatch, read_header
from onceflow.records.control import MarkerType, parse_marker

MS: Final = 1e-3
TOGETHER_SECONDS: Final = 0.05


class Commit(NamedTuple):
    """Of some rows in one partition."""

    partition: int
    seconds: float
    """Of the clock on the wall."""
    rows: int


def read_commits(logs: Path, topic: str, partitions: int) -> list[Commit]:
    """All that have rows, from the directory with the logs of a broker."""
    return [
        commit
        for partition in range(partitions)
        for commit in _of_partition(logs / f"{topic}-{partition}", partition)
    ]


def _of_partition(log: Path, partition: int) -> Iterator[Commit]:
    open_rows: Counter[int] = Counter()
    for batch in _batches(log):
        header = batch.header
        if not header.is_control:
            open_rows[header.producer_id] += header.record_count
            continue
        marker, rows = parse_marker(batch), open_rows.pop(header.producer_id, 0)
        if marker is not None and marker.type is MarkerType.COMMIT and rows:
            yield Commit(partition, marker.timestamp_ms * MS, rows)


def _batches(log: Path) -> Iterator[StoredBatch]:
    for segment in sorted(log.glob("*.log")):
        view, position = memoryview(segment.read_bytes()), 0
        while position + HEADER_SIZE <= len(view):
            header = read_header(view, position)
            yield StoredBatch(header, view[position : position + header.size])
            position += header.size


def first_seen(commits: Sequence[Commit]) -> float:
    """When every partition has had its first commit."""
    return max({each.partition: each.seconds for each in sorted(commits, reverse=True)}.values())


def last_seen(commits: Sequence[Commit]) -> float:
    return max(commit.seconds for commit in commits)


def steady_rate(commits: Sequence[Commit]) -> float:
    """Rows a second, from the first round of commits after which every partition has had one. The
    last round of all is left out where another is left: it may have few rows, and have waited for
    its time to come.

    Raises `BenchError` when there are too few.
    """
    first = first_seen(commits)
    begin, *later = (each for each in _rounds(commits) if each.seconds >= first)
    counted = later[:-1] or later
    if not counted:
        raise BenchError("all rows were committed at once: there is no rate")
    return sum(each.rows for each in counted) / (counted[-1].seconds - begin.seconds)


class _Round(NamedTuple):
    """Commits of several partitions that belong together."""

    seconds: float
    """When the last of them was there."""
    rows: int


def _rounds(commits: Sequence[Commit]) -> list[_Round]:
    """An engine commits in all partitions at almost the same time, then not for a while."""
    rounds: list[_Round] = []
    for _, seconds, rows in sorted(commits, key=lambda each: each.seconds):
        if rounds and seconds - rounds[-1].seconds < TOGETHER_SECONDS:
            rows += rounds.pop().rows
        rounds.append(_Round(seconds, rows))
    return rounds
