"""Our broker as a process of its own, for tests: `onceflow serve` on an ephemeral port."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

READY: Final = "listening on "
STOP_SECONDS: Final = 30.0


class OnceflowStartError(RuntimeError):
    """The broker did not come up; the message ends with what it printed."""


class OnceflowServer:
    """Answers when the block is entered; its process is gone when the block is left."""

    def __init__(
        self, data_dir: Path, *, settings: Mapping[str, str], through: Sequence[str] = ()
    ) -> None:
        """`through` is a command that runs the one that is appended to it, by `exec`."""
        self._through = through
        self._data_dir = data_dir
        self._errors = data_dir.with_suffix(".err")
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.bootstrap = ""

    def __enter__(self) -> Self:
        command = [
            *self._through,
            sys.executable,
            "-m",
            "onceflow",
            "serve",
            "--listen",
            "127.0.0.1:0",
        ]
        command += ["--data-dir", str(self._data_dir)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        output = self._process.stdout
        assert output is not None
        said = []
        for line in output:
            said.append(line)
            if line.startswith(READY):
                self.bootstrap = line.removeprefix(READY).strip()
                # The pipe is read to its end, so that a broker that prints more never blocks.
                self._reader = threading.Thread(target=output.read, daemon=True)
                self._reader.start()
                return self
        self.stop()
        raise OnceflowStartError(f"the broker ended: {''.join(said)}{self.log_text[-3000:]}")

    @property
    def log_text(self) -> str:
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        assert self._process is not None
        self._process.kill()
        self.stop()

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join()
        if process.stdout is not None:
            process.stdout.close()
