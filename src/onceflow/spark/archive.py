"""Makes the archive of classes with which Spark starts in half the time.

    python -m onceflow.spark.archive

A small pipeline is run once, with JSON, SQL, rules and dead letters, and its JVM writes down at its
end what it knows of the classes it has used. It is made once for each pair of Spark and Java; where
a Java cannot, Spark starts as it always has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from onceflow.blocking import Admin, Producer
from onceflow.broker import Broker
from onceflow.errors import OnceflowError
from onceflow.spark.pipeline import Pipeline
from onceflow.spark.session import ARCHIVE, find_java_home, require_spark, spark_home

MASTER: Final = "local[2]"
_MODULE: Final = "onceflow.spark.archive"
"""This one; run as a program it has another name."""
_PATIENCE_S: Final = 300.0
_ORDERS: Final = 100


class ArchiveNotMade(OnceflowError):
    """Spark starts without it, as it always has."""


def make() -> Path:
    """The archive, after making it if need be; raises `ArchiveNotMade`."""
    require_spark()
    java_home = find_java_home(os.environ)
    home = spark_home(os.environ, java_home)
    archive = home / ARCHIVE
    if archive.exists():
        return archive
    with tempfile.TemporaryDirectory(prefix="archive-", dir=home) as directory:
        written = Path(directory) / ARCHIVE
        problem = _practise_apart(directory, home, java_home, written)
        if not written.exists():
            raise ArchiveNotMade(
                f"no archive of Spark's classes could be made with the Java of {java_home}, so "
                f"Spark starts without it, as it always has: {problem or 'nothing was said'}"
            )
        written.rename(archive)
    return archive


def _practise_apart(directory: str, home: Path, java_home: Path, written: Path) -> str:
    """In a process of its own: there can be one JVM in each. What it said when it failed."""
    environ = {
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(home),
        "SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={written}"',
    }
    done = subprocess.run(
        [sys.executable, "-m", _MODULE, directory],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    return done.stderr[-1000:].strip() if done.returncode else ""


def practise(directory: Path) -> None:
    """Runs the pipeline, and waits until the JVM has ended."""
    with Broker() as broker:
        with Admin(broker.bootstrap) as admin:
            for topic in ("orders", "totals", "dead-letters"):
                admin.create_topic(topic)
        with Producer(broker.bootstrap) as producer:
            for number in range(_ORDERS):
                producer.send("orders", json.dumps({"id": number, "cents": number % 9}).encode())
        Pipeline(
            name="practice",
            checkpoint=directory / "checkpoint",
            base=directory,
            source={
                "bootstrap": broker.bootstrap,
                "topics": ["orders"],
                "format": "json",
                "schema": "id BIGINT NOT NULL, cents INT",
            },
            rules={"costs something": "cents > 0"},
            transform={"sql": "SELECT id, cents / 100 AS euros FROM source"},
            sink={"topic": "totals", "key": "id", "format": "json"},
            dead_letters={"topic": "dead-letters"},
        ).run(master=MASTER, once=True)
    _end_the_jvm()


def _end_the_jvm() -> None:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # pyspark has no public way to wait for its JVM
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_PATIENCE_S)


if __name__ == "__main__":
    if sys.argv[1:]:
        practise(Path(sys.argv[1]))
    else:
        try:
            print(make())
        except ArchiveNotMade as problem:
            sys.exit(str(problem))
