"""A workload on a disk that others fill and empty again, with the store never told before.

`CrowdedWorkload` is a `LogWorkload` in which an operation may be refused for lack of room: then it
must leave no trace, so it is struck out of the history, and `log_judge` would call what it left an
invention. The store itself must go on, and take up what had to wait as soon as there is room.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from onceflow.errors import DiskFull, StoreBusy
from onceflow.log.checkpoint import Durability
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.testing.disk import Link, Op, SimDisk
from onceflow.types import LogId
from tests.sim.log.judge import check_tidy
from tests.sim.log.workload import LogWorkload, PromiseBroken, config
from tests.unit.log.simulated_store import used

ROOMS = (0, 1, 60, 400, 1500, 5000, 9000, None, None)
"""How much others leave, now and then; None is more than enough."""


@dataclass(slots=True)
class CrowdedWorkload(LogWorkload):
    """`refused` are the names of the errors with which operations were refused."""

    refused: list[str] = field(default_factory=list)
    _others: random.Random = field(default_factory=random.Random)
    _store: LogStore | None = None

    @property
    def config(self) -> StoreConfig:
        honest = config(self.durability, compacting=self.compacting)
        return replace(honest, journal=replace(honest.journal, gathered_bytes=4000))

    def __post_init__(self) -> None:
        self._others = random.Random(self.seed + 1000)
        self.disk.fail = self._no_room_for_a_name
        LogWorkload.__post_init__(self)
        if self._store is not None:
            self._settle(self._store)

    def _no_room_for_a_name(self, op: Op) -> bool:
        """New names take room too, at times."""
        crowded = self.disk.capacity is not None
        if crowded and isinstance(op, Link) and self._others.random() < 0.3:
            raise DiskFull(f"no room for the name {op.name}")
        return False

    def _settle(self, store: LogStore) -> None:
        """There is room again: what waited goes on, and nothing is left of what was refused."""
        self.disk.capacity = None
        store.request_checkpoint()
        store._quiesce()
        self._check(store)
        self._all_acked()
        store.request_checkpoint()
        store._quiesce()
        check_tidy(store, self.disk)

    def _operate(self, store: LogStore, rand: random.Random, step: int) -> None:
        self._store = store
        if step % 97 > 92:  # an orderly stop comes soon, and takes some room
            self.disk.capacity = None
            store.request_checkpoint()
        elif self._others.random() < 0.2:
            room = self._others.choice(ROOMS)
            self.disk.capacity = None if room is None else used(self.disk) + room
        known = len(self.asked)
        try:
            LogWorkload._operate(self, store, rand, step)
        except (DiskFull, StoreBusy) as error:
            del self.asked[known:]
            self.refused.append(type(error).__name__)
        self._check(store)

    def _create(self, store: LogStore, rand: random.Random) -> None:
        """Several at once: the room may end between two of them, and then there is none of them."""
        topic_id = UUID(int=rand.getrandbits(128))
        log_ids = [LogId(topic_id, number) for number in range(1 + rand.randrange(3))]
        asked = [self._note("create", log_id) for log_id in log_ids]
        ticket = store.create("orders", log_ids)
        for each in asked:
            ticket.add_done_callback(partial(self._ack, each))

    def _retention(self, store: LogStore) -> None:
        """It may be refused half way: what it has moved until then has been asked for."""
        before = {log: log.start_offset for log in store.logs.values()}
        at = len(self.disk.ops)
        try:
            store.enforce_retention(0)
        except (DiskFull, StoreBusy) as error:
            self.refused.append(type(error).__name__)
        for log, start in before.items():
            if log.start_offset > start:
                asked = self._note("start", log.log_id, offset=log.start_offset)
                asked.asked_at = at
                if self.durability is Durability.FSYNC:
                    store.flush().add_done_callback(partial(self._ack, asked))

    def _check(self, store: LogStore) -> None:
        if store.failure is not None:
            raise PromiseBroken(f"a full disk stopped the store: {store.failure!r}")
        for log in store.logs.values():
            for path, size, expected in _file_sizes(self.disk, log):
                if size != expected:
                    raise PromiseBroken(f"{path} has {size} bytes, the log knows of {expected}")


def _file_sizes(disk: SimDisk, log: PartitionLog) -> Iterator[tuple[str, int, int]]:
    sizes = {entry.name: entry.size for entry in disk.entries(log.directory)}
    for segment in log.segments:
        path = segment.path("log")
        yield path, sizes[path.rpartition("/")[2]], segment.size
