"""The command `onceflow`, on one broker: in this process, or in one of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceflow.cli import run
from tests.interop.harness import Names

SECONDS: Final = 60
KEEP: Final = ("-c", "retention.ms=-1")
"""For records that say they are years old: a broker may delete them at any moment."""


class Done(NamedTuple):
    """How a command ended, and what it wrote."""

    status: int
    output: bytes
    errors: str


class Cli:
    """The command, on one broker."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.names = Names.fresh(bootstrap)
        self._input = directory / "input"

    def run(self, *arguments: str) -> Done:
        output, errors = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            status = run([*arguments, "--bootstrap", self.bootstrap])
        output.flush()
        written = output.buffer
        assert isinstance(written, io.BytesIO)
        return Done(status, written.getvalue(), errors.getvalue())

    def text(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.status == 0, done.errors
        return done.output.decode()

    def json(self, *arguments: str) -> Any:
        return json.loads(self.text(*arguments, "--json"))

    def consume(self, *arguments: str) -> list[Any]:
        lines = self.text("consume", *arguments, "--exit-at-end", "--json").splitlines()
        return [json.loads(line) for line in lines]

    def produce(self, topic: str, data: bytes, *arguments: str) -> str:
        self._input.write_bytes(data)
        return self.text("produce", topic, "--file", str(self._input), *arguments)

    def refused(self, *arguments: str) -> dict[str, Any]:
        """The error of a command that must fail."""
        done = self.run(*arguments, "--json")
        assert done.status == 1, done.output
        error: dict[str, Any] = json.loads(done.errors)["error"]
        return error

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """In a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "onceflow", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "ONCEFLOW_BOOTSTRAP": self.bootstrap},
        )
