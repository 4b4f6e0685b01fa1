"""When the journal says that its owner has nothing to do but to wait for a write."""

from __future__ import annotations

from collections.abc import Callable

from onceflow.log.store import LogStore, StoreConfig
from onceflow.runtime.background import Done, Inline, Job, Lane
from onceflow.runtime.disk import DurableWrite
from onceflow.runtime.sim_disk import SimDisk
from tests.unit.log_helpers import RAND, append, log_id, new_batch


class Watched(Inline):
    """Notes how each group is written, and lets something happen meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.alone: list[bool] = []
        self.meanwhile: Callable[[], None] | None = None

    def submit(self, lane: Lane, job: Job, done: Done) -> None:
        if isinstance(job, DurableWrite):
            self.alone.append(job.is_alone)
            happens, self.meanwhile = self.meanwhile, None
            if happens is not None:
                happens()
        super().submit(lane, job, done)


def test_who_is_alone_is_found_out_and_looked_at_again() -> None:
    background = Watched()
    store = LogStore.open(SimDisk(), background, RAND, StoreConfig(reserve_bytes=0))
    store.create("orders", [log_id(1)])  # the first group
    log = store.logs[log_id(1)]
    for _ in range(70):
        append(store, log, new_batch())
    assert background.alone == [each >= 8 and each % 32 != 0 for each in range(71)]

    def another_comes() -> None:
        append(store, log, new_batch())

    background.alone.clear()
    background.meanwhile = another_comes
    for _ in range(10):
        append(store, log, new_batch())
    assert background.alone == [True] + [False] * 8 + [True] * 2  # one came during the first
    assert log.high_watermark == 81
    store.close()
