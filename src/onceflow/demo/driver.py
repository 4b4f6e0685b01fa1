"""One driver of the demo: `onceflow run` in a process of its own, which asks at every named point.

    python -m onceflow.demo.driver PORT NAME PIPELINE_FILE

It and its JVM are a process group, so that both can be killed or stopped at once. They end with the
demo, however that ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from onceflow.demo.strikes import Asking
from onceflow.errors import OnceflowError

MASTER: Final = "local[2]"
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The better half of the JVM's compiler, and a collector with threads, pay off after minutes."""
_PATIENCE_S: Final = 120.0


class DemoStuck(OnceflowError):
    """Something did not happen for too long, or happened that must not."""


class Driver:
    """The process, as the demo sees it."""

    def __init__(self, name: str, port: int, pipeline: Path) -> None:
        self.name = name
        self._output = pipeline.with_name(f"{name}.output")
        self._errors = pipeline.with_name(f"{name}.errors")
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(port), name, str(pipeline)],
                env={**os.environ, **_environment(str(pipeline.parent))},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                process_group=0,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def has_started(self) -> bool:
        """Whether it has Spark and its query; the first thing that it says is that."""
        return self._output.stat().st_size > 0

    def kill(self) -> None:
        """SIGKILL, to Python and to the JVM."""
        self._signal_all(signal.SIGKILL)
        self._process.wait()
        self._let_go()

    def freeze(self) -> None:
        """Returns when no thread of Python runs any more: the signal goes to one of them, which
        stops the others when it comes to run, and one that is held at a point may be quicker."""
        self._signal_all(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def wake(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        # No other process gets its number before this one has waited for it.
        if self._process.returncode is None:
            os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """Lets it finish the batch under way, and end."""
        self._process.terminate()

    def until_ended(self) -> int:
        """The status with which it has ended."""
        try:
            status = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise DemoStuck(
                f"{self.name} should have ended, but is still running after {_PATIENCE_S:.0f} s"
            ) from None
        self._let_go()
        return status

    def _let_go(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def error(self) -> tuple[str, str]:
        """The kind of the error that it has ended with, and its text."""
        said = self._errors.read_text(encoding="utf-8", errors="replace").strip()
        last = said.rpartition("\n")[2]
        try:
            told = json.loads(last)["error"]
            return str(told["type"]), str(told["message"])
        except (ValueError, KeyError, TypeError):
            return "", said[-2000:]


def _environment(scratch: str) -> dict[str, str]:
    """A killed process cleans nothing up: its temporary files go where the demo removes them."""
    java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_QUICK} -Djava.io.tmpdir={scratch}".strip()
    return {"TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch, "SPARK_SUBMIT_OPTS": java}


def _end_with_the_demo() -> None:
    """Nothing is ever sent on standard input; that it ends tells that the demo has."""

    def watch() -> None:
        os.read(0, 1)  # not through a buffer, whose lock the interpreter wants at its end
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    from onceflow.cli import run
    from onceflow.spark.sink import job_context

    port, name, pipeline = sys.argv[1:]
    _end_with_the_demo()
    job_context.reached = Asking(int(port), name)
    sys.exit(run(["run", pipeline, "--master", MASTER, "--json"]))


if __name__ == "__main__":
    main()
