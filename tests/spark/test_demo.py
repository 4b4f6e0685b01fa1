"""`onceflow demo` as a person runs it: whoever is killed, each order counts once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from onceflow.demo.strikes import STRIKES
from tests.spark.pipeline.run import QUICK
from tests.spark.session import require_spark

PATIENCE_S = 900.0

pytestmark = pytest.mark.interop


def played(place: Path, *arguments: str) -> str:
    """What it says on the way to a good end; `place` is its working directory."""
    # Not in `place`: Unix sockets are made there, and a path of theirs must be short.
    with tempfile.TemporaryDirectory() as scratch:
        java = require_spark().resolve().parents[1]
        done = subprocess.run(
            [sys.executable, "-m", "onceflow", "demo", *arguments],
            cwd=place,
            env={
                **os.environ,
                "JAVA_HOME": str(java),
                "JDK_JAVA_OPTIONS": QUICK,
                "TMPDIR": scratch,
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert list(Path(scratch).iterdir()) == []
    assert "\x1b" not in done.stdout  # no colours where there is no terminal
    return done.stdout


def test_a_worker_and_the_broker_are_killed(tmp_path: Path) -> None:
    told = played(tmp_path, "--strikes", "2", "--picture", "two.svg")
    assert [each.words in told for each in STRIKES] == [True, True, False, False]
    assert "2 strikes, none lost, none doubled" in told
    assert told.rstrip().endswith(f"picture: {tmp_path / 'two.svg'}")
    assert "none lost, none doubled" in (tmp_path / "two.svg").read_text()


@pytest.mark.long
def test_all_that_can_happen_happens(tmp_path: Path) -> None:
    told = played(tmp_path)
    assert all(each.words in told for each in STRIKES)
    assert "the first one is fenced" in told
    assert "4 strikes, none lost, none doubled" in told
    assert (tmp_path / "onceflow-demo.svg").exists()
