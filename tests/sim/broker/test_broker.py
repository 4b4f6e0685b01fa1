"""A whole broker in the simulator: runs that repeat, and promises that outlive a power cut.

And the proof that these tests can fail: on a disk whose syncs do nothing, promises are broken.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceflow.errors import OnceflowError
from onceflow.testing.crash import crash_images
from onceflow.testing.world import run
from tests.sim.broker.workload import (
    CLIENTS,
    FAULTS,
    History,
    PromiseBroken,
    check_image,
    main,
    sampled_images,
    without_syncs,
)

SEEDS = 6
BOUNDARIES = 12

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize(
    "seeds", [range(2, 5), pytest.param(range(SEEDS), marks=pytest.mark.long)], ids=str
)
def test_equal_seeds_give_equal_traces_and_what_was_acknowledged_survives_a_power_cut(
    seeds: range,
) -> None:
    traces = set()
    failures: set[str] = set()
    for seed in seeds:
        history, trace = run(seed, main, faults=FAULTS)
        again, second = run(seed, main, faults=FAULTS)
        assert (history.told(), trace) == (again.told(), second), f"seed {seed} did not repeat"
        assert len(history.acked) > CLIENTS
        assert history.fetched
        assert any(each.acked for each in history.commits.values())
        assert history.deleted
        for image in sampled_images(history, seed=seed, boundaries=BOUNDARIES):
            check_image(image, history)
        traces.add(trace)
        failures.update(history.failures)
    assert len(traces) == len(seeds)
    assert failures >= {"ConnectionRefusedError", "ConnectionResetError"}


def test_the_last_ops_of_a_run_one_by_one() -> None:
    """Every image at every boundary of the stop, where the clean checkpoint is written."""
    history, _ = run(SEEDS, main, faults=FAULTS)
    disk = history.disk
    count = 0
    for image in crash_images(disk, seed=1, subsets=1, first=len(disk.ops) - 12):
        check_image(image, history)
        count += 1
    assert count > 12


def test_on_a_disk_that_lies_the_promises_are_broken() -> None:
    history, _ = run(2, main, faults=FAULTS)
    lying = History(
        without_syncs(history.disk),
        history.topics,
        history.deleted,
        history.acked,
        history.commits,
    )
    broken = 0
    for image in sampled_images(lying, seed=2, boundaries=10):
        try:
            check_image(image, lying)
        except (PromiseBroken, OnceflowError):
            broken += 1
    assert broken > 5


def hashes_of_a_process() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.broker.workload", "1"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_another_process_with_another_hash_seed_gives_the_same_traces() -> None:
    here = run(0, main, faults=FAULTS)[1] + "\n"
    assert hashes_of_a_process() == here
