"""Puts Apache Kafka's jars into `.cache/kafka-<version>/` under the project root, once.

`python tools/kafka_jars.py` prints that directory; tests call `ensure_kafka_jars()`. The jars are
fetched by Maven, as its own settings say, into a directory beside the final one, which is then
renamed: the directory is there complete or not at all. Needs nothing outside the standard library.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

KAFKA_VERSION: Final = "4.3.1"
OLDER_KAFKA_VERSION: Final = "3.9.2"
"""The last line before transactions got epochs of their own: it speaks the older protocol only."""
CLIENT_VERSION: Final = "4.4.0"
"""The newest release: its clients are in Maven Central, its broker is not."""
ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = ROOT / ".cache"


class KafkaJarsError(RuntimeError):
    """Jars are not here and could not be fetched; the message says what to do."""


def ensure_kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """The directory that holds the jars of a release, after fetching them if need be."""
    return ensure_jars("pom.xml", f"kafka-{version}", {"kafka.version": version})


def ensure_client_jars() -> Path:
    """The directory that holds the newest of Apache Kafka's clients, and what that needs."""
    versions = {"kafka.version": CLIENT_VERSION}
    return ensure_jars("pom-client.xml", f"kafka-clients-{CLIENT_VERSION}", versions)


def newest_client() -> Path:
    """The jar itself, which also has the specifications of all messages."""
    return ensure_client_jars() / f"kafka-clients-{CLIENT_VERSION}.jar"


def classpath_of_newest_client() -> str:
    """For programs and tools of the release that we test with, but with the newest client."""
    return f"{newest_client()}:{ensure_kafka_jars()}/*"


def ensure_jars(pom: str, name: str, versions: Mapping[str, str]) -> Path:
    """The directory `.cache/<name>` with what a pom beside this file asks for."""
    jars = CACHE / name
    if not jars.is_dir():
        with alone(CACHE):
            if not jars.is_dir():
                _fetch(_find_maven(), Path(__file__).with_name(pom), jars, versions)
    return jars


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Who wants to make something in there waits until others have made theirs, which may be the
    same."""
    directory.mkdir(exist_ok=True)
    (directory / ".gitignore").write_text("*\n", encoding="utf-8")
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _fetch(maven: str, pom: Path, jars: Path, versions: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{jars.name}.", dir=jars.parent) as scratch:
        complete = Path(scratch) / "jars"
        _run(
            [
                maven,
                *("-q", "-B", "-f", str(pom)),
                "dependency:copy-dependencies",
                *(f"-D{key}={value}" for key, value in versions.items()),
                f"-DoutputDirectory={complete}",
            ]
        )
        complete.rename(jars)


def _find_maven() -> str:
    maven = shutil.which("mvn")
    if maven is None and may_install_packages():
        print("mvn is missing: installing Debian's maven package", file=sys.stderr)
        _run(["apt-get", "update"])
        _run(["apt-get", "install", "-y", "--no-install-recommends", "maven"])
        maven = shutil.which("mvn")
    if maven is None:
        raise KafkaJarsError(
            "jars of Apache Kafka and Spark are fetched by Maven, and mvn is not on PATH: "
            "install Maven (Debian and Ubuntu: apt-get install maven), "
            "then run the tests again"
        )
    return maven


def may_install_packages() -> bool:
    return (
        Path("/etc/debian_version").exists()
        and os.geteuid() == 0
        and shutil.which("apt-get") is not None
    )


def _run(command: list[str]) -> None:
    """Run a command quietly; its output matters only when it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise KafkaJarsError(
            f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout[-2000:]}"
        )


if __name__ == "__main__":
    try:
        print(ensure_kafka_jars())
    except KafkaJarsError as problem:
        sys.exit(str(problem))
