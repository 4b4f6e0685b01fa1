"""Spark's own standalone cluster on this machine: a master and two workers, each a process."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.spark.session import spark_environment

HOST: Final = "127.0.0.1"
WORKERS: Final = 2
START_S: Final = 120.0
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = "Registering worker"


class ClusterNotStarted(RuntimeError):
    """A process did not come up; the message ends with what it logged."""


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[str]:
    """The address of its master, when all workers are there."""
    directory.mkdir(parents=True)
    running: list[subprocess.Popen[bytes]] = []
    try:
        log = directory / "master"
        listens = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        running.append(_start(log, "master.Master", listens))
        (master,) = _await(log, _MASTER, 1)
        for number in range(WORKERS):
            own = directory / f"work-{number}"
            has = ["--cores", "1", "--memory", "1g", "--work-dir", str(own)]
            given = [*listens, *has, master]
            running.append(_start(directory / own.name[5:], "worker.Worker", given))
        _await(log, re.compile(f"({_REGISTERED})"), WORKERS)
        yield master
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _start(log: Path, what: str, given: list[str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **spark_environment(),
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    spark_class = Path(environment["SPARK_HOME"]) / "bin" / "spark-class"
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(spark_class), f"org.apache.spark.deploy.{what}", *given],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _await(log: Path, what: re.Pattern[str], times: int) -> list[str]:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = what.findall(log.read_text(errors="replace"))
        if len(found) >= times:
            return found
        time.sleep(0.05)
    raise ClusterNotStarted(f"{what.pattern!r} was not logged: {log.read_text()[-2000:]}")
