"""A Spark session with the settings that make pipelines fast, and its log in a file.

Everything is a default: what a pipeline sets wins. Settings that are only right where driver and
executors are one machine are left out elsewhere.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onceflow.errors import InvalidSetting
from onceflow.spark.errors import SparkMissing
from onceflow.spark.session.home import find_java_home, prepare
from onceflow.spark.session.python import CHOICE, is_local, take_back_choice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
_THREADS: Final = re.compile(r"local\[(\d+)[,\]].*")
_LOCAL_FILES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_PYTHON: Final = "spark.pyspark.python"
_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_SOCKETS_IN: Final = "spark.python.unix.domain.socket.dir"
_LONGEST: Final = 60
"""Bytes of a directory in which Spark's sockets, with names of 43 bytes, still have room."""
ALWAYS: Final[Mapping[str, str]] = {
    "spark.log.level": "WARN",
    "spark.python.daemon.module": "onceflow.spark.daemon",
    # Rows cross between JVM and Python in pieces of this size: larger ones are slower.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(256 << 10),
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
ON_ONE_MACHINE: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Where a shuffle file was lost, Spark forgets its own blocks, cannot make itself known again,
    # and would end after so many heartbeats in vain; the query has gone on long before.
    "spark.executor.heartbeat.maxFailures": str(2**31 - 1),
    _SOCKETS: "true",
    "spark.shuffle.compress": "false",
    # Where there are few partitions Spark would write a file for each, and copy them into one.
    "spark.shuffle.sort.bypassMergeThreshold": "1",
    "spark.ui.enabled": "false",
}


def session_settings(
    master: str, checkpoint: str, given: Mapping[str, str], *, cores: int, has_pandas: bool
) -> dict[str, str]:
    """All settings of a session; a pure function."""
    chosen = dict(ALWAYS)
    if is_local(master):
        chosen.update(ON_ONE_MACHINE)
        threads = _THREADS.fullmatch(master)
        chosen["spark.sql.shuffle.partitions"] = threads[1] if threads else str(cores)
    if not has_pandas:
        # Spark would look for it at every function, and warn that it goes on without it.
        chosen["spark.sql.execution.pythonUDF.arrow.enabled"] = "false"
    if is_local_path(checkpoint):
        # Others keep a checksum beside each file, and rename twice.
        chosen["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_FILES
    return {**chosen, **given}


def with_short_sockets(settings: Mapping[str, str], places: Iterable[str]) -> dict[str, str]:
    """A directory for Unix sockets, whose paths must be short: the first of these that is, and not
    the JVM's own, which may be any. Where none is, Spark does without them. Raises `InvalidSetting`
    when the one that was chosen is too long; pure."""
    given = settings.get(_SOCKETS_IN)
    if settings.get(_SOCKETS) != "true":
        return dict(settings)
    if given is not None:
        if _is_long(given):
            raise InvalidSetting(
                f"{_SOCKETS_IN} = {given!r} is too long: a Unix socket there would have no room, "
                f"so give a directory of at most {_LONGEST} bytes"
            )
        return dict(settings)
    for each in places:
        if not _is_long(each):
            return {**settings, _SOCKETS_IN: each}
    return {**settings, _SOCKETS: "false"}


def _is_long(directory: str) -> bool:
    return len(os.fsencode(directory)) > _LONGEST


def is_local_path(checkpoint: str) -> bool:
    return "://" not in checkpoint or checkpoint.startswith("file:")


def require_spark() -> None:
    """Raises `SparkMissing`."""
    if find_spec("pyspark") is None:
        raise SparkMissing("pyspark is not installed: pip install 'onceflow[spark]'")


def make_session(
    name: str, master: str, settings: Mapping[str, str], log_path: Path
) -> SparkSession:
    """Starts Spark; raises `SparkMissing` when there is no pyspark or no Java. What it prints goes
    to the log, now and later."""
    require_spark()
    java_home = find_java_home(os.environ)
    os.environ["JAVA_HOME"] = str(java_home)
    if not is_local(master):
        take_back_choice()
    if chosen := settings.get(_PYTHON):
        os.environ[CHOICE] = chosen  # Spark heeds its own setting only under spark-submit
    if is_local(master):
        os.environ.setdefault(CHOICE, sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        prepare(os.environ, java_home)
        usual = (tempfile.gettempdir(), "/tmp")
        settings = with_short_sockets(
            settings, (each for each in usual if os.access(each, os.W_OK))
        )
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _output_into(log_path), _deaf_to_hangups():
            return builder.getOrCreate()
    except PySparkException as error:
        raise SparkMissing(f"Spark did not start: {_last_line(log_path, error)}") from error


@contextmanager
def _output_into(path: Path) -> Iterator[None]:
    """Processes that are started inside have this file as their output."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        for number, copy in enumerate(kept, 1):
            os.dup2(copy, number)
            os.close(copy)
        os.close(log)


_starting: Final[set[int]] = set()
"""The threads that start Spark."""


@contextmanager
def _deaf_to_hangups() -> Iterator[None]:
    """The end of a terminal goes to all its processes, and a JVM that is started inside has to
    outlive the last batch; for Ctrl-C Spark itself sees to that. It ends with this process, whose
    end it sees."""
    thread = threading.get_ident()
    _starting.add(thread)
    try:
        yield
    finally:
        _starting.discard(thread)


def _ignore_hangups() -> None:
    if threading.get_ident() in _starting:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


# Only in the child: a parent that ignored the signal meanwhile would miss its own. Called for the
# JVM because Spark prepares that child by a function; what is started otherwise has no such hooks.
os.register_at_fork(after_in_child=_ignore_hangups)


def _last_line(path: Path, error: Exception) -> str:
    lines: list[str] = []
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    errors = [line.strip() for line in lines if "rror" in line or "xception" in line]
    return f"{errors[-1] if errors else error} (all of it is in {path})"
