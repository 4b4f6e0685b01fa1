"""The daemon of the workers: whom it kills, and what memory they keep."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

import pytest

from onceflow.spark.daemon import OwnWorkersOnly, keep_memory

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


PIECES = """
import resource
from onceflow.spark.daemon import keep_memory

def use(pieces):
    for _ in range(pieces):
        [b"x" * (1 << 20) for _ in range(20)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

assert keep_memory()
before = use(2)
print(use(10) - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_memory_of_one_piece_of_rows_is_there_for_the_next() -> None:
    told = subprocess.run([sys.executable, "-c", PIECES], stdout=subprocess.PIPE, check=True)
    assert int(told.stdout) < 1000, "each piece has 5,000 pages, and they came anew"


def test_without_glibc_memory_is_kept_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not keep_memory()
