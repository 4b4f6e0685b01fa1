"""Puts PyFlink with its Kafka connector into an environment of its own under `.cache`, once.

`python -m tools.flink` prints the Python of that environment; the bench calls `ensure_flink()`. The
packages are those of `requirements-flink.lock`, by hash, and the connector's jar has the checksum
below; it lies beside Flink's own, as Flink's manual has it. The environment is made beside its
final place and then renamed: it is there complete or not at all, and another one for another lock.
Nothing of it reaches `.venv`, whose packages are of other versions.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.kafka_jars import ROOT, KafkaJarsError, ensure_jars

FLINK_VERSION: Final = "2.3.0"
CONNECTOR_VERSION: Final = "5.0.0-2.2"
CONNECTOR_SHA256: Final = "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616"
LOCK: Final = ROOT / "requirements-flink.lock"
CACHE: Final = ROOT / ".cache"
SAID_MAX: Final = 2000


class FlinkError(RuntimeError):
    """Flink is not here and could not be fetched; the message says what to do."""


def ensure_flink() -> Path:
    """The Python that has PyFlink, after fetching it if need be; raises `FlinkError`."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    home = CACHE / f"flink-{FLINK_VERSION}-{digest}"
    if not home.is_dir():
        _make(home, connector())
    return home / "bin" / "python"


def connector() -> Path:
    """The connector's jar, which is the one that was meant; raises `FlinkError`."""
    try:
        jars = ensure_jars(
            "flink_pom.xml",
            f"flink-kafka-{CONNECTOR_VERSION}",
            {"connector.version": CONNECTOR_VERSION},
        )
    except KafkaJarsError as error:
        raise FlinkError(str(error)) from error
    jar = jars / f"flink-sql-connector-kafka-{CONNECTOR_VERSION}.jar"
    found = hashlib.sha256(jar.read_bytes()).hexdigest()
    if found != CONNECTOR_SHA256:
        raise FlinkError(
            f"{jar} has the SHA-256 {found} and should have {CONNECTOR_SHA256}: "
            "remove its directory and try again"
        )
    return jar


def _make(home: Path, jar: Path) -> None:
    print("installing PyFlink (0.7 GB, about a minute)", file=sys.stderr)
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{home.name}.", dir=CACHE) as scratch:
        made = Path(scratch) / "made"
        python = made / "bin" / "python"
        _uv("venv", "--relocatable", "--python", sys.executable, str(made))
        # Compiled now: else the first job that is timed would do so.
        _uv(
            *("pip", "install", "--compile-bytecode", "--require-hashes"),
            *("--python", str(python), "-r", str(LOCK)),
        )
        (libraries,) = made.glob("lib/python*/site-packages/pyflink/lib")
        shutil.copy(jar, libraries)
        try:
            made.rename(home)
        except OSError:
            # Another process may have finished first; its directory is as good as ours.
            if not home.is_dir():
                raise


def _uv(*arguments: str) -> None:
    """Quietly; what it prints matters only when it fails."""
    command = [sys.executable, "-m", "uv", "--quiet", *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise FlinkError(
            f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout[-SAID_MAX:]}\n"
            "PyFlink needs Python 3.11 or 3.12"
        )


if __name__ == "__main__":
    try:
        print(ensure_flink())
    except FlinkError as problem:
        sys.exit(str(problem))
