"""Short slices, as the kernel tells them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from onceflow.runtime import scheduling

USUAL = os.sched_getscheduler(0) == os.SCHED_OTHER
PROGRAM = """
import ctypes, os, sys, threading
from onceflow.runtime import scheduling

def found():
    said = scheduling._Attributes()
    size = ctypes.sizeof(said)
    if ctypes.CDLL(None).syscall(scheduling._GET, 0, ctypes.byref(said), size, 0) != 0:
        sys.exit(3)
    return said

if sys.argv[1] == "batch":
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
before = found()
taken = scheduling.take_short_slices()
children = []
thread = threading.Thread(target=lambda: children.append(found().runtime))
thread.start()
thread.join()
after = found()
kept = (after.policy, after.nice) == (before.policy, before.nice)
print(int(taken), int(kept), after.runtime, before.runtime, children[0])
"""


class Found(NamedTuple):
    taken: int
    kept: int
    slice_ns: int
    before_ns: int
    in_a_thread_ns: int


def found_after_asking(policy: str) -> Found:
    if scheduling._GET is None:
        pytest.skip("the kernel's numbers for this architecture are not known")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, policy], check=False, capture_output=True, text=True
    )
    if ran.returncode == 3:
        pytest.skip("nobody may ask the kernel here")
    assert ran.returncode == 0, ran.stderr
    return Found(*map(int, ran.stdout.split()))


def has_slices() -> bool:
    return tuple(int(each) for each in os.uname().release.split(".")[:2]) >= (6, 12)


@pytest.mark.skipif(not USUAL, reason="the tests themselves run under another policy")
def test_the_kernel_takes_a_shorter_slice_for_this_thread_alone() -> None:
    found = found_after_asking("other")
    assert found.kept
    if has_slices():
        assert found.taken
        assert found.slice_ns == 100_000 < found.before_ns
        assert found.in_a_thread_ns == found.before_ns


@pytest.mark.skipif(not USUAL, reason="the tests themselves run under another policy")
def test_another_policy_is_left_alone() -> None:
    found = found_after_asking("batch")
    assert found.kept
    assert not found.taken
    assert found.slice_ns == found.before_ns
