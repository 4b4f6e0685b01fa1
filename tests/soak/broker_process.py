"""The broker under test, in a process of its own that ends with this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

READY = "listening on "
STOP_SECONDS = 60.0
LINES = 400
COMPLAINTS = (" WARN ", " ERROR ", " FATAL ", "Traceback ", "Error: ")
STRANGERS = " broker.net.connection: closed the connection "


class BrokerDied(AssertionError):
    """It ended by itself."""


class BrokerProcess:
    """From `with` to the end of the block."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str],
        *,
        census_s: float,
        leaks: Sequence[str] = (),
    ) -> None:
        self.data_dir = directory / "data"
        self.census = directory / "census.json"
        self.bootstrap = ""
        self.lines: deque[str] = deque(maxlen=LINES)
        self.complaints: deque[str] = deque(maxlen=LINES)
        """What it said that is worse than a hint, but for what it thinks of strangers."""
        self._ready = threading.Event()
        self._command = [sys.executable, "-m", "tests.soak.measured_broker", str(self.census)]
        self._command += [str(census_s), ",".join(leaks) or "-", f"--parent={os.getpid()}"]
        self._command += [f"--data-dir={self.data_dir}", "--listen=127.0.0.1:0"]
        self._command += [f"--set={key}={value}" for key, value in settings.items()]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready.wait()
        if not self.bootstrap:
            self._process.wait()
            self._end()
            self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._end()

    def _end(self) -> None:
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        """All that it says, to its end, so that it never waits for a reader."""
        for line in self._process.stdout or ():
            self.lines.append(line)
            if any(each in line for each in COMPLAINTS) and STRANGERS not in line:
                self.complaints.append(line.strip())
            if line.startswith(READY):
                self.bootstrap = line.removeprefix(READY).strip()
                self._ready.set()
        self._ready.set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises when it runs no more."""
        if self._process.poll() is not None:
            raise BrokerDied(f"the broker ended by itself:\n{''.join(self.lines)}")
