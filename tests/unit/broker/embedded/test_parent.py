"""A broker in a process of its own belongs to the program that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Final

from onceflow.broker.embedded.broker import Broker

SECONDS: Final = 60.0


def test_it_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    program = f"""
        import os, signal, onceflow
        with onceflow.Broker(process=True, data_dir={str(tmp_path / "data")!r}) as broker:
            print(broker.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    killed = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + SECONDS
    while is_alive(int(killed.stdout)):
        assert time.monotonic() < deadline, "the broker has outlived its program"
        time.sleep(0.02)
    with Broker(data_dir=tmp_path / "data") as broker:
        assert "stopped cleanly before" in broker.log_text


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
