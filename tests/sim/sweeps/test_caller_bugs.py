"""Bugs that show when an answer is late, a caller goes away or somebody else is in trouble: each
that is planted in the client is found, and soon. Those of producers that several use are found in
`test_sim_sending_sweeps`, those of blocking clients in `test_blocking_interrupted`."""

from __future__ import annotations

import gc

import pytest

from onceflow.client.errors.requests import ClientError
from onceflow.spark.errors.sink import BatchFailed
from tests.sim.sweeps.caller_bugs import BUGS, Bug

FOUND = (AssertionError, ClientError, TimeoutError, BatchFailed, RecursionError)
"""The last one is how asyncio ends a task that waits for itself when its time is up. Whatever else
is raised is not what was planted."""

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.plant.__name__)
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises(FOUND):
        bug.hunt()
    gc.collect()  # what was left half done in a world that is over complains here, and not later
