"""The home of a Spark on one machine, and the archive of its classes: a start takes half as long.

The home is in the user's cache, one for each pair of Spark and Java, and holds links only. Beside
them lies, once `onceflow.spark.archive` has made it, an archive of what a JVM has to know
of the classes that a pipeline uses; the JVM itself finds out whether it still fits.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final

ARCHIVE: Final = "classes.jsa"
_PARTS: Final = ("bin", "jars", "sbin")
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is not used, and that is all."""


def spark_home(environ: Mapping[str, str], java_home: Path) -> Path:
    """Spark without its `pyspark.zip`: workers would import from that, and compile what they import
    anew at every start. A temporary one where there is no cache to write to."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    told = hashlib.sha256(f"{installed} {java_home}".encode()).hexdigest()[:12]
    home = _cache(environ) / f"spark-{pyspark.__version__}-{told}"
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
