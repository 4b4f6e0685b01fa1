"""Starts Apache Kafka in half the time: with an archive of the classes that it loads on its way.

    with ApacheKafka(jars, tmp_path, java_options=quick_options(jars)) as kafka: ...

A Kafka is started and stopped once for each pair of jars and Java, and its JVM writes down at its
end what it knows of the classes. The archive lies beside the jars, under a name of their place and
of that Java; where a Java makes none, Kafka starts as it always has.
"""

from __future__ import annotations

import subprocess
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Final

from tools.apache_kafka import QUICK_TO_START, ApacheKafka, KafkaStartError
from tools.java import find_java
from tools.kafka_jars import alone

SILENT: Final = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")
"""That an archive does not fit is no news to whoever reads what a program printed."""


@cache
def quick_options(jars: Path) -> tuple[str, ...]:
    """For a node that lives for minutes; makes the archive if need be."""
    archive = jars / f"kafka-{_fingerprint(jars):08x}.jsa"
    if not archive.exists():
        with alone(jars):
            if not archive.exists():
                _make(jars, archive)
    if not archive.exists():
        return QUICK_TO_START
    return (*QUICK_TO_START, f"-XX:SharedArchiveFile={archive}", *SILENT)


def _make(jars: Path, archive: Path) -> None:
    """Under a name of its own first: it is there complete or not at all."""
    with tempfile.TemporaryDirectory(prefix="archive-", dir=jars.parent) as directory:
        written = Path(directory) / archive.name
        options = (*QUICK_TO_START, f"-XX:ArchiveClassesAtExit={written}", *SILENT)
        try:
            with ApacheKafka(jars, Path(directory) / "node", java_options=options):
                pass
        except KafkaStartError:
            return  # whoever starts the next one is told why
        if written.exists():
            written.rename(archive)


def _fingerprint(jars: Path) -> int:
    """Of all that an archive must fit: a Java, and jars at their place."""
    java = find_java()
    told = ""
    if java is not None:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        told = done.stderr
    return zlib.crc32(f"{java} {jars} {told}".encode())
