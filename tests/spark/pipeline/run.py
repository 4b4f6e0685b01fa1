"""`onceflow run` as a process of its own, as a person starts it, and what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, Final

from tests.spark.session import require_spark

PATIENCE_S: Final = 240.0
ROOT: Final = Path(__file__).resolve().parents[3]
LOCAL: Final = ("--master", "local[2]")
EXECUTORS: Final = ("--master", "local-cluster[2,1,1024]")
"""Two of them, each a process of its own."""
COMMAND: Final = (sys.executable, "-m", "onceflow")
# The second half of the compiler and a collector with threads pay off after minutes only.
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Run:
    """A process of `onceflow run --json`, in a process group as a terminal makes one."""

    def __init__(
        self,
        path: Path,
        *arguments: str,
        command: tuple[str, ...] = COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [*command, "run", str(path), "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**_surroundings(), **(environment or {})},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._lines: Queue[dict[str, Any] | None] = Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read),
            threading.Thread(target=self._read_errors),
        ]
        for each in self._readers:
            each.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _read_errors(self) -> None:
        self._errors.extend(self._process.stderr or ())

    @property
    def said(self) -> str:
        """On standard error, so far."""
        return "".join(self._errors)

    def next(self) -> dict[str, Any]:
        line = self._lines.get(timeout=PATIENCE_S)
        if line is None:
            self._readers[1].join()
        assert line is not None, self.said
        return line

    def until(self, is_enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first of its lines that is enough."""
        while True:
            line = self.next()
            if "read" in line and is_enough(line):
                return line

    def until_read(self, records: int) -> dict[str, Any]:
        """Until so many are read, and all that is read is written."""
        return self.until(lambda line: bool(line["read"] >= records and line["lag"] == 0))

    def signal(self, number: int, *, to_all: bool) -> None:
        if to_all:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def end(self) -> tuple[int, dict[str, Any]]:
        """How it ended, and the last that it said."""
        last: dict[str, Any] = {}
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            last = line
        status = self._process.wait(PATIENCE_S)
        self._readers[1].join()
        return status, last

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for each in self._readers:
            each.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _surroundings() -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(require_spark().resolve().parents[1]),
        "JDK_JAVA_OPTIONS": QUICK,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def running(path: Path, *arguments: str) -> Iterator[tuple[Run, str]]:
    """A pipeline that has started, and the brokers that it is on."""
    run = Run(path, *arguments)
    try:
        begun = run.next()
        assert begun["state"] == "started"
        yield run, begun["bootstrap"]
    finally:
        run.close()
