"""A disk that is full now and then, at any moment: what is refused leaves no trace, what is not is
kept, the store goes on, and a power cut in the midst of it is recovered from.

And the proof that these checks can fail: each planted bug must break a promise.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import pytest

from onceflow.errors import StoreFailed
from onceflow.log.checkpoint import Durability
from onceflow.log.checkpointer import Checkpointer
from onceflow.log.journal_ring import Ring
from onceflow.log.segment import Segment
from onceflow.log.store import LogStore
from onceflow.runtime.sim_crash import sampled_images
from tests.sim.crowded_disk import CrowdedWorkload
from tests.sim.log_crash import PromiseBroken
from tests.sim.log_judge import check_image
from tests.unit.planting import plant

STEPS = 120
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
        (range(1, 9), Durability.FSYNC),
        (range(1, 7), Durability.OS),
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
    seed: int = 1
    durability: Durability = Durability.FSYNC


BUGS = {
    "a part of a batch is left": Bug(Segment, "append", "file.truncate(position)", "pass"),
    "what found no room is not tried again": Bug(
        Checkpointer, "_postpone", "flush.log.take_back(flush)", "pass"
    ),
    "a journal that cannot grow stops the store": Bug(
        Ring, "_prepare", "if not isinstance(error, DiskFull):", "if True:", seed=7
    ),
    "a refused creation leaves its directory": Bug(
        LogStore,
        "create",
        "remove_directory(self._disk, log.directory)",
        "pass",
        seed=8,
        durability=Durability.OS,
    ),
    "a refused creation is checkpointed": Bug(
        LogStore, "create", "self._durable.pop(log.log_id, None)", "pass", durability=Durability.OS
    ),
    "a refused creation was checkpointed before": Bug(
        LogStore, "create", "self._quiesce()", "pass", seed=2, durability=Durability.OS
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_checks_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    plant(monkeypatch, bug.owner, bug.method, bug.right, bug.wrong)
    with pytest.raises((PromiseBroken, StoreFailed)):
        check([bug.seed], bug.durability)
