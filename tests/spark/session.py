"""A Spark for tests and for the programs that tests start: small, quick to start, on this machine
only, with the jars of Spark's own Kafka connector to compare with."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onceflow.spark.session.home import spark_home, with_archive
from onceflow.spark.session.session import ON_ONE_MACHINE
from tools.java import find_java
from tools.spark_jars import ensure_spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[2,4]"
"""Two cores; a task may be tried four times."""
_CHECKPOINT_FILES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    # The second half of the compiler and a collector with threads pay off after minutes only. The
    # first half alone has 48 MB for its code by default: all tests together fill that, and what is
    # thrown out is compiled again and again.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
    ),
    "spark.driver.host": "127.0.0.1",
    # All tests share one JVM, and what their queries leave behind fills the usual gigabyte.
    "spark.driver.memory": "3g",
    # A test loses shuffle files; the rest of the tests would have ten minutes from then on.
    "spark.executor.heartbeat.maxFailures": ON_ONE_MACHINE["spark.executor.heartbeat.maxFailures"],
    "spark.log.level": "ERROR",
    # Workers are forked off a process that has loaded what they need.
    "spark.python.daemon.module": "onceflow.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class SparkMissing(RuntimeError):
    """Spark cannot run here; the message says what to install."""


def require_spark() -> Path:
    """The Java to run Spark with; raises `SparkMissing`."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing("pyspark is missing: install requirements-spark.lock")
    java = find_java()
    if java is None:
        raise SparkMissing("there is no Java to run Spark")
    return java


def spark_environment() -> dict[str, str]:
    """What has to be in the environment of a process that starts Spark."""
    java_home = require_spark().resolve().parents[1]
    home = spark_home(os.environ, java_home)
    return {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": with_archive("", home),
    }


@contextmanager
def spark_session(
    scratch: Path, *, master: str = MASTER, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """The one Spark of this process; `settings` come on top of `SETTINGS`."""
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("onceflow-tests")
    chosen = {
        **SETTINGS,
        "spark.jars": ",".join(map(str, sorted(ensure_spark_jars().glob("*.jar")))),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **(settings or {}),
    }
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
