"""A driver of its own, made ready before it is needed: starting Spark is most of what it does.

    python -m tests.spark.kills.driver MASTER SCRATCH

Prints the process id of its JVM when it is ready, takes a plan as one line of JSON, runs it, and
prints as one line of JSON the name of the error that ended the query and its text, or null.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException

from onceflow.spark.sink import task_plan
from tests.spark.kills.fate import Fate, parent_of
from tests.spark.kills.query import Plan, start_query
from tests.spark.session import MASTER, spark_session
from tests.spark.sink.hooks import at_points

ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE_S: Final = 240.0
MORE_TASKS: Final = "6"
"""Than cores: those that start late find that what they want to read is gone."""


class Driver:
    """One such process, as the one that started it sees it."""

    def __init__(
        self, scratch: Path, master: str = MASTER, more: Mapping[str, str] | None = None
    ) -> None:
        """`more`: settings of Spark."""
        scratch.mkdir(parents=True)
        self.scratch = scratch
        self.name = scratch.name
        self._errors = (scratch / "errors").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, master, str(scratch), json.dumps(dict(more or {}))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.pid = self._process.pid
        self.jvm = 0

    def go(self, plan: Plan) -> None:
        """Waits until it is ready."""
        if not self.jvm:
            line = self._output.readline()
            assert line, f"{self.name} did not start: {self.said}"
            self.jvm = int(line)
        given = self._process.stdin
        assert given is not None
        given.write(json.dumps(plan._replace(driver=self.name)) + "\n")
        given.flush()

    @property
    def _output(self) -> Any:
        return self._process.stdout

    @property
    def said(self) -> str:
        return (self.scratch / "errors").read_text()[-3000:]

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int) -> None:
        """To Python and to the JVM; to nobody once Python has ended: its JVM ends with it, and
        both numbers may belong to others by then."""
        self._send_jvm(number)
        self._process.send_signal(number)

    def stand_still(self) -> None:
        """Returns when no thread of Python runs any more: the signal goes to one of them, which
        stops the others when it comes to run, and one that waits for an answer may be quicker."""
        self.send(signal.SIGSTOP)
        if self.is_running:
            os.waitpid(self.pid, os.WUNTRACED)

    def kill_python(self) -> None:
        """The JVM finds that out, and ends."""
        self._process.kill()

    def kill_jvm(self) -> None:
        self._send_jvm(signal.SIGKILL)

    def _send_jvm(self, number: int) -> None:
        if self.is_running and self.jvm and parent_of(self.jvm) == self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.jvm, number)

    def result(self, patience_s: float = PATIENCE_S) -> list[str] | None:
        """How the query ended: None when well, else the error's name and text, or the signal."""
        told, _ = self._process.communicate(timeout=patience_s)
        found: list[str] | None
        if self._process.returncode == 0:
            found = json.loads(told.splitlines()[-1])
        else:
            found = [
                signal.Signals(-self._process.returncode).name
                if self._process.returncode < 0
                else "ended",
                self.said,
            ]
        self.close()
        return found

    def close(self) -> None:
        """Ends it, if it has not ended."""
        self.send(signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.wait()
        self._errors.close()


def ended_by(error: BaseException) -> list[str]:
    """The name of our error inside Spark's, and its text."""
    lines = [line for line in str(error).splitlines() if line.startswith(("onceflow.", "tests."))]
    if not lines:
        return [type(error).__name__, str(error)[:2000]]
    name, _, text = lines[-1].partition(":")
    return [name.rpartition(".")[2], text.strip()[:2000]]


def settings(scratch: Path) -> dict[str, str]:
    return {
        "spark.default.parallelism": MORE_TASKS,
        # Executors take these sources, whatever is installed.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.worker.cleanup.enabled": "false",
        "spark.jars.ivy": str(scratch / "ivy"),
    }


def main(master: str, scratch: Path, more: Mapping[str, str]) -> None:
    chosen = {**settings(scratch), **more}
    with spark_session(scratch, master=master, settings=chosen) as spark:
        # Warms what every batch needs; a job, too, as the first one is slow.
        spark.range(1).collect()
        gateway: Any = spark.sparkContext._gateway
        print(gateway.proc.pid, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        plan = Plan(*json.loads(line))
        hook = Fate(plan.port, plan.driver) if plan.port else task_plan.nothing
        with at_points(hook):
            query = start_query(spark, plan)
            try:
                query.awaitTermination()
            except PySparkException as error:
                print(json.dumps(ended_by(error)), flush=True)
                return
    print(json.dumps(None), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
