"""Power cuts at every op of workloads with transactions: whole or not at all, and as acknowledged.

And the proof that these checks can fail: each of a list of bugs, planted in the broker, is found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from onceflow.testing import background as sim_background
from onceflow.testing.crash import Image, sampled_images
from onceflow.testing.world import run
from onceflow.txn import machine
from onceflow.txn.machine import Finish, TransactionMetadata
from tests.doses import some_long
from tests.sim.broker.workload import without_syncs
from tests.sim.txn.bugs import BUGS, Bug
from tests.sim.txn.client import PLACES
from tests.sim.txn.examine import Examiner, recovering
from tests.sim.txn.history import History, PromiseBroken
from tests.sim.txn.judge import Decisions, check_never_back
from tests.sim.txn.observe import ABORTED, COMMITTED, Seen, SeenLog
from tests.sim.txn.workload import FAULTS, SHAPES, workload

SEEDS_TO_TRY = 3

pytestmark = pytest.mark.usefixtures("quiet")


def history_of(shape: str, seed: int) -> History:
    return run(seed, workload(SHAPES[shape]), faults=FAULTS)[0]


@pytest.mark.parametrize(
    ("shape", "seed", "torn"), [("fsync", 2, 1), ("crowded", 1, 0), ("os", 0, 0)]
)
def test_no_promise_of_a_transaction_is_broken_by_a_power_cut_at_any_op(
    shape: str, seed: int, torn: int, every: int
) -> None:
    history = history_of(shape, seed)
    ends = {(each.end.commit, each.end.code) for each in history.transactions if each.end}
    assert ends >= {(True, "NONE"), (False, "NONE")}
    assert any(each.by_init for each in history.fenced)
    assert any(each.offset_acked_at < history.now for each in history.transactions)
    examiner = Examiner(history, SHAPES[shape], thorough=False)
    for image in islice(sampled_images(history.disk, seed=seed, others=torn), 0, None, every):
        examiner.check(image)
    assert examiner.images > history.now // every
    assert examiner.brokers > history.now // every / 2


def test_a_second_power_cut_while_the_first_is_recovered_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At moments at which transactions are decided and have not been carried out."""
    shape = SHAPES["crowded"]
    history = history_of("crowded", 0)
    examiner = Examiner(history, shape, thorough=False)
    ends = [each.end for each in history.transactions if each.end is not None]
    resumed: list[Finish] = []
    honest = machine.resume

    def resume(transaction: TransactionMetadata, now_ms: int) -> Finish | None:
        finish = honest(transaction, now_ms)
        resumed.extend([finish] if finish is not None else [])
        return finish

    monkeypatch.setattr(machine, "resume", resume)
    for at in sorted(end.answered_at for end in ends if end.code == "NONE"):
        (first, *_) = sampled_images(history.disk, seed=0, others=0, first=at, last=at)
        resumed.clear()
        disk = recovering(first, shape)
        if resumed:
            for image in sampled_images(disk, seed=0, others=0):
                again = Image(at, f"{image.boundary}, {image.kind}", image.disk)
                examiner.check(again, nested=True)
    assert examiner.brokers > 10


def find(bug: Bug, patch: pytest.MonkeyPatch) -> None:
    """Raises what the judge says of a broker with a bug. Where a change of the broker has moved the
    moment at which it shows, another seed or two may be needed."""
    for seed in range(bug.seed, bug.seed + SEEDS_TO_TRY):
        look_for(bug._replace(seed=seed), patch)
        patch.undo()


def look_for(bug: Bug, patch: pytest.MonkeyPatch) -> None:
    # A write that is done at once leaves no moment in between for the bug to show.
    patch.setattr(sim_background, "share_at_once", lambda _: 0)
    if bug.serving:
        bug.plant(patch)
    history = history_of(bug.shape, bug.seed)
    if not bug.recovering:
        patch.undo()
    elif not bug.serving:
        bug.plant(patch)
    examiner = Examiner(history, SHAPES[bug.shape])
    for image in sampled_images(history.disk, seed=bug.seed, others=0, first=bug.first):
        examiner.check(image)


SLOW = ("complete_before_markers", "recovery_flips_the_decision", "zombies_let_in")


@pytest.mark.parametrize("name", some_long(BUGS, *SLOW))
def test_the_judge_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    with pytest.raises(PromiseBroken, match=bug.verdict):
        find(bug, monkeypatch)


def test_the_judge_finds_that_syncs_do_nothing() -> None:
    history = history_of("fsync", 1)
    history.disk = without_syncs(history.disk)
    examiner = Examiner(history, SHAPES["fsync"])
    (image, *_) = sampled_images(history.disk, seed=1, others=0, first=history.made)
    with pytest.raises(PromiseBroken, match="topics are gone"):
        examiner.check(image)


def test_no_decision_may_turn_round_from_cut_to_cut() -> None:
    decisions = Decisions()
    decisions.check({1: COMMITTED, 2: ABORTED}, durable=True)
    decisions.check({1: COMMITTED, 3: ABORTED}, durable=False)  # compaction took what 2 had written
    decisions.check({1: COMMITTED, 3: COMMITTED}, durable=False)
    with pytest.raises(PromiseBroken, match="transaction 1 was committed"):
        decisions.check({2: ABORTED}, durable=False)
    with pytest.raises(PromiseBroken, match="transaction 2 was aborted"):
        decisions.check({1: COMMITTED, 2: COMMITTED}, durable=False)


@pytest.mark.parametrize(
    ("ends", "visible", "states"),
    [
        ((4, 5), {0: b"x"}, {1: ABORTED}),
        ((5, 4), {0: b"x"}, {1: ABORTED}),
        ((5, 5), {}, {1: ABORTED}),
        ((5, 5), {0: b"x"}, {1: COMMITTED}),
    ],
)
def test_what_was_seen_once_may_not_change(
    ends: tuple[int, int], visible: dict[int, bytes], states: dict[int, str]
) -> None:
    place = PLACES[0]
    before = SeenLog(5, 5, state={0: COMMITTED, 1: ABORTED}, visible={0: b"x"})
    check_never_back(Seen({place: before}), Seen({place: before}))
    after = SeenLog(*ends, state=states, visible=visible)
    with pytest.raises(PromiseBroken):
        check_never_back(Seen({place: before}), Seen({place: after}))


def test_equal_seeds_give_equal_traces_in_every_process() -> None:
    here = ""
    for shape in SHAPES.values():
        history, trace = run(0, workload(shape), faults=FAULTS)
        again, second = run(0, workload(shape), faults=FAULTS)
        assert (history.told(), trace) == (again.told(), second)
        here += trace + "\n"
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.txn.workload", "1"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == here
