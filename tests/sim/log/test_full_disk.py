"""A disk that is full now and then, at any moment: what is refused leaves no trace, what is not is
kept, the store goes on, and a power cut in the midst of it is recovered from.

And the proof that these checks can fail: each planted bug must break a promise.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import pytest

from onceflow.errors import OnceflowError
from onceflow.log.checkpoint import Durability
from onceflow.log.checkpointer import Checkpointer
from onceflow.log.journal.ring import Ring
from onceflow.log.segments.segment import Segment
from onceflow.log.store import LogStore
from onceflow.testing.crash import sampled_images
from tests.doses import some_long
from tests.sim.log.crowded_disk import CrowdedWorkload
from tests.sim.log.judge import check_image
from tests.sim.log.workload import PromiseBroken
from tests.unit.log.planting import plant

STEPS = 120
SEEDS_TO_TRY = range(1, 20)
IMAGES = 67
"""Of so many images one is looked at."""


def check(seeds: Iterable[int], durability: Durability, *, every: int = IMAGES) -> list[str]:
    """Runs and judges; what was refused, by the names of the errors."""
    refused: list[str] = []
    for seed in seeds:
        workload = CrowdedWorkload(seed, STEPS, durability=durability, compacting=seed % 2 == 0)
        refused += workload.refused
        images = sampled_images(workload.disk, seed=seed, others=1)
        for image in islice(images, seed % every, None, every):
            check_image(image, workload)
    return refused


@pytest.mark.parametrize(
    ("seeds", "durability"),
    [
        (range(1, 6), Durability.FSYNC),
        (range(6, 10), Durability.OS),
        pytest.param(range(10, 100), Durability.FSYNC, marks=pytest.mark.long),
        pytest.param(range(10, 100), Durability.OS, marks=pytest.mark.long),
    ],
)
def test_no_promise_is_broken_by_a_disk_that_is_full_at_times(
    seeds: range, durability: Durability
) -> None:
    refused = check(seeds, durability)
    assert refused.count("DiskFull") > 20 * len(seeds)


class Bug(NamedTuple):
    """What is planted, and in which workload it shows."""

    owner: type
    method: str
    right: str
    wrong: str
    durability: Durability = Durability.FSYNC


BUGS = {
    "a part of a batch is left": Bug(Segment, "append", "file.truncate(position)", "pass"),
    "what is deleted is forgotten where a checkpoint finds no room": Bug(
        Checkpointer, "_postpone", "self.deleted = capture.deleted + self.deleted", "pass"
    ),
    "who waits for a checkpoint that finds no room is forgotten": Bug(
        Checkpointer,
        "_postpone",
        "self._next = capture.ticket",
        "pass",
        durability=Durability.OS,
    ),
    "a journal that cannot grow stops the store": Bug(
        Ring,
        "_prepare",
        "elif not isinstance(error, DiskExhausted):",
        "else:\n            raise error\n        if False:",
    ),
    "a refused creation leaves its directory": Bug(
        LogStore, "_undo", "self._disk.rmdir(log.directory)", "pass", durability=Durability.OS
    ),
    "a refused creation leaves its log": Bug(
        LogStore, "_undo", "del self.logs[log.log_id]", "pass"
    ),
}


SLOW = ("what is deleted is forgotten where a checkpoint finds no room",)


@pytest.mark.parametrize("name", some_long(BUGS, *SLOW))
def test_the_checks_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    plant(monkeypatch, bug.owner, bug.method, bug.right, bug.wrong)
    with pytest.raises((PromiseBroken, OnceflowError)):
        check(SEEDS_TO_TRY, bug.durability)
