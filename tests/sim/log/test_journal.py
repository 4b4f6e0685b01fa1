"""Whatever a store does, no group of its journal that a recovery would need is touched.

And the proof that this can fail: with each bug planted the guard must speak.
"""

from __future__ import annotations

import pytest

from onceflow.errors import OnceflowError
from onceflow.log.checkpointer import Checkpointer
from onceflow.log.journal.journal import Journal
from onceflow.log.journal.ring import Ring
from onceflow.testing.disk import SimDisk
from tests.sim.log.journal_guard import JournalGuard
from tests.sim.log.workload import LogWorkload, PromiseBroken
from tests.unit.log.planting import plant

SEEDS = range(1, 25)


def guarded(seed: int) -> JournalGuard:
    disk = SimDisk()
    disk.watch = guard = JournalGuard(disk)
    try:
        LogWorkload(seed, steps=100, disk=disk, compacting=seed % 2 == 0)
    except (OnceflowError, PromiseBroken):
        assert guard.broken  # which is why the store could not go on
    return guard


def test_no_group_that_a_recovery_needs_is_written_over_or_removed() -> None:
    guards = [guarded(seed) for seed in SEEDS]
    assert [guard.broken for guard in guards] == [[] for _ in SEEDS]
    assert sum(guard.reused for guard in guards) > 10 * len(SEEDS)


BUGS = {
    "a full file is free one group too early": (
        Ring,
        "release",
        "in self._full if each.last_sequence < before_sequence",
        "in self._full if each.last_sequence <= before_sequence",
    ),
    "the present file begins anew one group too early": (
        Ring,
        "release",
        "self.current.last_sequence < before_sequence",
        "self.current.last_sequence <= before_sequence",
    ),
    "the file that the checkpoint names is removed": (
        Ring,
        "release",
        " and each.number != start_file",
        "",
    ),
    "a file does not know its last group": (
        Journal,
        "_kick",
        "file.last_sequence = self._sequence",
        "pass",
    ),
    "a file takes the group before for its last": (
        Journal,
        "_kick",
        "file.last_sequence = self._sequence",
        "file.last_sequence = self._sequence - 1",
    ),
    "the start is that of a group later": (
        Journal,
        "release",
        "start.sequence",
        "start.sequence + 1",
    ),
    "files are free when the checkpoint is asked for": (
        Checkpointer,
        "proceed",
        "capture = self._capture()",
        "capture = self._capture(); self._journal.release(capture.checkpoint.journal)",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_guard_notices(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *BUGS[bug])
    assert any(guarded(seed).broken for seed in SEEDS)
