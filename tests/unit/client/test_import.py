"""Importing a client is cheap: what takes its time to load is loaded by who needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("awscrt", "kio", "llvmlite", "numba", "numpy", "pandas", "pyarrow", "uvloop")


@pytest.mark.parametrize("name", ["Producer", "Session", "Admin", "Consumer"])
@pytest.mark.parametrize("package", ["onceflow", "onceflow.client"])
def test_nothing_heavy_comes_with_it(package: str, name: str) -> None:
    code = (
        f"import sys; from {package} import {name}; "
        f"print([each for each in {HEAVY!r} if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_forked_worker_loads_no_event_loop_and_no_message_library() -> None:
    code = (
        "import sys; from onceflow.client.worker import BlockingCluster, BlockingReader, "
        "BlockingWriter, TransactionClient; "
        f"print([each for each in {(*HEAVY, 'asyncio')!r} if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
