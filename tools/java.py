"""Finds a Java that is new enough for Apache Kafka and Spark: version 17 or later."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

OLDEST_USABLE: Final = 17
BROUGHT_HOME: Final = Path(__file__).resolve().parent.parent / ".cache" / "java"
"""Where `tools.setup` puts a Java when the machine has none; good as a JAVA_HOME."""


def find_java() -> Path | None:
    """The first usable `java`: ONCEFLOW_JAVA and no other when that is set, else that of JAVA_HOME,
    PATH or the set-up."""
    for java in _candidates():
        version = _major_version(java)
        if version is not None and version >= OLDEST_USABLE:
            return java
    return None


def _candidates() -> Iterator[Path]:
    if chosen := os.environ.get("ONCEFLOW_JAVA"):
        yield Path(chosen)
        return
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    yield BROUGHT_HOME / "bin" / "java"


def _major_version(java: Path) -> int | None:
    """17 for `openjdk version "17.0.15"`, 1 for the old style `"1.8.0_402"`; None: no Java."""
    if java in _ASKED:
        return _ASKED[java]
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # `java -version` speaks on stderr.
    found = re.search(r'version "(\d+)', done.stderr)
    if found is None or done.returncode != 0:
        return None
    version = _ASKED[java] = int(found[1])
    return version


_ASKED: Final[dict[Path, int]] = {}
"""To ask one takes a tenth of a second, and tests start many programs."""
