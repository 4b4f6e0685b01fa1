"""Importing a client is cheap: what takes its time to load is loaded by who needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("awscrt", "kio", "llvmlite", "numba", "numpy", "pandas", "pyarrow", "uvloop")


@pytest.mark.parametrize("module", ["producer", "fetcher", "admin", "consumer"])
def test_nothing_heavy_comes_with_it(module: str) -> None:
    code = (
        f"import sys, onceflow.client.{module}; print([n for n in {HEAVY!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
