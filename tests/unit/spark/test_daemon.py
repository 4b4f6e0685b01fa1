"""The daemon of the workers: whom it kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from onceflow.spark.daemon import OwnWorkersOnly

WAITS = "import sys; sys.stdin.read()"


def test_a_worker_of_its_own_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE) as worker:
        OwnWorkersOnly().kill(worker.pid, signal.SIGKILL)
        assert worker.wait(10) == -signal.SIGKILL


def test_a_pid_that_has_another_owner_by_now_is_left_alone() -> None:
    tells = (
        f"import subprocess as s, sys; p = s.Popen([sys.executable, '-c', '{WAITS}'], stdin=0); "
        "print(p.pid, flush=True); p.wait(); print(p.returncode, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", tells], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as between:
        assert between.stdout is not None
        stranger = int(between.stdout.readline())
        with pytest.raises(ChildProcessError):
            OwnWorkersOnly().kill(stranger, signal.SIGKILL)
        rest, _ = between.communicate(timeout=10)
        assert rest.split() == ["0"], "the stranger was killed"


def test_the_whole_group_is_told_of_the_end() -> None:
    # The daemon ends its workers by a signal to pid 0, its process group.
    script = (
        "import os, signal; from onceflow.spark.daemon import OwnWorkersOnly; "
        "OwnWorkersOnly().kill(0, signal.SIGTERM)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, start_new_session=True, timeout=60
    )
    assert ended.returncode == -signal.SIGTERM
    assert OwnWorkersOnly().getpid() == os.getpid()
