"""The demo, when somebody ends it before its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def test_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    program = (
        "import time; from rich.console import Console; from onceflow.demo import command as demo\n"
        "with demo._ended_by_sigterm(), demo._scratch(Console()) as directory:\n"
        "    (directory / 'file').touch(); print(directory, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        directory = Path(running.stdout.readline().strip())
        assert directory.parent == tmp_path
        assert (directory / "file").exists()
        running.terminate()
        assert running.wait(30) == 128 + signal.SIGTERM
        assert running.stdout.read() == ""
    assert list(tmp_path.iterdir()) == []
