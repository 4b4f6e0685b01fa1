"""Processes that run queries, one after the other: warm ones, which stay until the bench ends, and
fresh ones, of which each is used once.

A process is told a run in a line of JSON and answers with one; see `bench.spark.load_spark`.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.common.targets import BenchError
from bench.common.turn import LOAD_SECONDS_MAX

SPARK: Final = (sys.executable, "-m", "bench.spark.load_spark")
ANSWER_SECONDS_MAX: Final = 600.0


class Session:
    """A process that runs queries."""

    def __init__(self, parent: Path, command: Sequence[str]) -> None:
        self._directory = TemporaryDirectory(prefix="bench-session-", dir=parent)
        self._log = Path(self._directory.name) / "errors"
        self.started: Final = time.time()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--directory", self._directory.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answer()

    def run(self, **asked: object) -> Any:
        """Raises `BenchError`; then it is of no more use."""
        if self._process.stdin is None:
            raise BenchError("the session has no input")
        with suppress(BrokenPipeError):  # told by what follows
            print(json.dumps(asked), file=self._process.stdin, flush=True)
        answer = self._answer()
        if "error" in answer:
            raise BenchError(f"{asked['query']}: {answer['error']}")
        return answer

    def _answer(self) -> Any:
        if self._process.stdout is None:
            raise BenchError("the session has no output")
        timer = threading.Timer(ANSWER_SECONDS_MAX, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            status = self._process.wait()
            said = self._log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
            raise BenchError(f"a session ended with status {status}: {said}")
        return json.loads(line)

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(LOAD_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._directory.cleanup()


_warm: dict[str, Session] = {}
"""By engine."""


def close_sessions() -> None:
    while _warm:
        _warm.popitem()[1].close()


atexit.register(close_sessions)


@contextmanager
def warm_session(engine: str, parent: Path, command: Sequence[str] = SPARK) -> Iterator[Session]:
    """That of the engine; one in which something has failed is not used again."""
    session = _warm.pop(engine, None) or Session(parent, command)
    try:
        yield session
    except BaseException:
        session.close()
        raise
    _warm[engine] = session


@contextmanager
def fresh_session(parent: Path, command: Sequence[str] = SPARK) -> Iterator[Session]:
    session = Session(parent, command)
    try:
        yield session
    finally:
        session.close()
