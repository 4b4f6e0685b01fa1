"""What must not grow with the years: files, the broker's own logs, its tables, timers.

Work is the same in every month, so limits are numbers: about twice what a year without a bug
reaches. That logs are compacted is looked at more closely: whatever is dirty enough has been, since
the broker looked last.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from onceflow.log.partition_log import PartitionLog
from tests.sim.txn.history import PromiseBroken
from tests.sim.years.machine import NOTICED_S, Machine

OWN_LOGS: Final = {
    "__consumer_offsets": 24_000,
    "__transaction_state": 9_000,
    "__cluster_metadata": 45_000,
}
"""Bytes of a partition. The metadata log has more where each unclean start begins leader epochs."""
DISK_BYTES: Final = 300_000
"""Without what is kept for ever."""
FILES: Final = 450
OBJECTS: Final = 8_000
TIMERS: Final = 100
CONNECTIONS: Final = 30
PRODUCERS: Final = 90
"""In all partitions together."""
TRANSACTIONAL_IDS: Final = 12
GROUPS: Final = 60


class Bounds:
    """Looked at every day."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._dirty: dict[str, tuple[int, float]] = {}
        """Of logs that should be compacted: up to where they are, and since when that is known."""

    def check(self, *, thorough: bool) -> None:
        """Raises `PromiseBroken`; `thorough` also counts all objects, which takes a while."""
        machine = self._machine
        for name, found, limit in (*_sizes(machine), *_tables(machine)):
            _check(name, found, limit)
        if thorough:
            kinds = reachable(machine.server)
            _check(f"objects of the broker ({kinds.most_common(5)})", kinds.total(), OBJECTS)
        for log in machine.logs():
            self._check_compacted(log)

    def _check_compacted(self, log: PartitionLog) -> None:
        cleaned_to, clocks = log.compaction.cleaned_to, self._machine.clocks
        if not _is_dirty(log):
            self._dirty.pop(log.name, None)
            return
        known, since = self._dirty.setdefault(log.name, (cleaned_to, clocks.now()))
        if known != cleaned_to:
            self._dirty[log.name] = cleaned_to, clocks.now()
        elif clocks.now() - max(since, clocks.ordinary_since) > NOTICED_S:
            raise PromiseBroken(f"{log.name} is not compacted from offset {cleaned_to} on")


def _check(name: str, found: int, limit: int) -> None:
    if found > limit:
        raise PromiseBroken(f"too much: {name}: {found}, not more than {limit}")


def _sizes(machine: Machine) -> Iterator[tuple[str, int, int]]:
    disk, size, files = machine.disk, 0, 0
    for entry in disk.entries("."):
        if entry.is_dir and not entry.name.startswith("keep-"):
            inside = [each.size for each in disk.entries(entry.name)]
            size += sum(inside)
            files += len(inside)
    yield "bytes on the disk", size, DISK_BYTES
    yield "files", files, FILES
    for log in machine.logs():
        if log.topic in OWN_LOGS:
            yield f"bytes of {log.name}", log.size, OWN_LOGS[log.topic]


def _tables(machine: Machine) -> Iterator[tuple[str, int, int]]:
    node = machine.server.node
    partitions = [each for topic in node.topics.by_name.values() for each in topic.partitions]
    producers = sum(1 for each in partitions for _ in each.producers.producers())
    yield "producers", producers, PRODUCERS
    yield "transactional ids", sum(1 for _ in node.transactions.all()), TRANSACTIONAL_IDS
    yield "groups", sum(1 for _ in node.groups.all_groups()), GROUPS
    yield "timers", machine.world.loop.timer_count, TIMERS
    yield "connections", len(machine.world.net.connections), CONNECTIONS


def _is_dirty(log: PartitionLog) -> bool:
    """Whether more of the sealed segments is to be compacted than has been, and nothing holds that
    back."""
    companion = log.companion
    if not log.config.compact or (companion and companion.first_unstable() is not None):
        return False
    sealed = log.segments[:-1]
    dirty = sum(each.size for each in sealed if each.end_offset > log.compaction.cleaned_to)
    clean = sum(each.size for each in sealed) - dirty
    return dirty > log.config.min_cleanable_dirty_ratio * (clean + dirty)


_NOT_THE_BROKERS: Final = (
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    CodeType,
    FrameType,
)


def reachable(root: Any) -> Counter[str]:
    """How many objects of each kind a broker holds, by its references; of the simulated world
    around it none."""
    seen, waiting, found = {id(root)}, [root], Counter[str]()
    while waiting:
        each = waiting.pop()
        found[type(each).__name__] += 1
        for other in gc.get_referents(each):
            is_worlds = isinstance(other, _NOT_THE_BROKERS) or type(other).__name__.startswith(
                "Sim"
            )
            if id(other) not in seen and not is_worlds:
                seen.add(id(other))
                waiting.append(other)
    return found
