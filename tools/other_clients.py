"""Puts clients that others wrote into `.cache`, once: kafka-python 2, KafkaJS, and a program with
three clients in Go.

Versions are exact, and hashes are checked: those of kafka-python stand in
`requirements-kafka-python-2.lock`, that of KafkaJS below, those of Go's modules in their `go.sum`.
Each client is made beside its final place and then renamed: it is there complete or not at all, and
another one for another version.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.kafka_jars import CACHE, ROOT, alone, may_install_packages

PROGRAMS: Final = ROOT / "tests" / "interop" / "broker" / "languages"
KAFKA_PYTHON_LOCK: Final = ROOT / "requirements-kafka-python-2.lock"
KAFKAJS_VERSION: Final = "2.2.4"
KAFKAJS_SHA512: Final = (
    "j/YeapB1vfPT2iOIUn/vxdyKEuhuY2PxMBvf5JWux6iSaukAccrMtXEY/Lb7OvavDhOWME589bpLrEdnVHjfjA=="
)
OLDEST_NODE: Final = 16
SAID_MAX: Final = 2000


class OtherClientsError(RuntimeError):
    """A client is not here and could not be fetched or built; the message says what to do."""


def ensure_kafka_python() -> Path:
    """The directory to put before others on PYTHONPATH; raises `OtherClientsError`."""
    digest = hashlib.sha256(KAFKA_PYTHON_LOCK.read_bytes()).hexdigest()[:12]
    return _made_once(CACHE / f"kafka-python-2-{digest}", _install_kafka_python)


def ensure_kafkajs() -> Path:
    """The directory that NODE_PATH is to name; raises `OtherClientsError`."""
    return _made_once(CACHE / f"kafkajs-{KAFKAJS_VERSION}", _install_kafkajs) / "node_modules"


def find_node() -> str:
    """The program `node`, new enough; raises `OtherClientsError`."""
    node = _find("node", "nodejs", "npm")
    said = _run([node, "--version"])
    version = re.match(r"v(\d+)", said)
    if version is None or int(version[1]) < OLDEST_NODE:
        raise OtherClientsError(
            f"{node} is {said.strip()}, and the program with KafkaJS needs "
            f"Node.js {OLDEST_NODE} or later"
        )
    return node


def ensure_go_clients() -> Path:
    """The program with the clients in Go; raises `OtherClientsError`."""
    sources = sorted(path for path in (PROGRAMS / "go").iterdir() if path.is_file())
    told = hashlib.sha256()
    for path in sources:
        told.update(path.name.encode() + path.read_bytes())
    return _made_once(CACHE / f"go-clients-{told.hexdigest()[:12]}", _build_go_clients) / "clients"


def _made_once(home: Path, make: Callable[[Path], None]) -> Path:
    if home.is_dir():
        return home
    with (
        alone(CACHE),
        tempfile.TemporaryDirectory(prefix=f"{home.name}.", dir=CACHE) as scratch,
    ):
        complete = Path(scratch) / "made"
        if not home.is_dir():
            complete.mkdir()
            make(complete)
            complete.rename(home)
    return home


def _install_kafka_python(home: Path) -> None:
    command = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--require-hashes"]
    _run([*command, "--target", str(home), "-r", str(KAFKA_PYTHON_LOCK)])


def _install_kafkajs(home: Path) -> None:
    npm = _find("npm", "nodejs", "npm")
    # The package is fetched by itself, so that it can be looked at before anything is made of it.
    _run([npm, "pack", "--pack-destination", str(home), f"kafkajs@{KAFKAJS_VERSION}"])
    (package,) = home.glob("*.tgz")
    found = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if found != KAFKAJS_SHA512:
        raise OtherClientsError(
            f"npm brought a {package.name} with the SHA-512 {found}, which should be "
            f"{KAFKAJS_SHA512}: look where npm has it from, then run the tests again"
        )
    options = ("--no-package-lock", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund")
    _run([npm, "install", *options, "--prefix", str(home), str(package)])
    package.unlink()


def _build_go_clients(home: Path) -> None:
    go = _find("go", "golang-go")
    print("building the program with clients in Go (one to three minutes)", file=sys.stderr)
    options = ("-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s")
    # An older Go brings the one that the module asks for. No compiler of C is needed.
    surroundings = {"GOTOOLCHAIN": "auto", **os.environ, "CGO_ENABLED": "0"}
    command = [go, "build", *options, "-o", str(home / "clients"), "."]
    _run(command, directory=PROGRAMS / "go", surroundings=surroundings)


def _find(program: str, *packages: str) -> str:
    """The program, by Debian's packages where it is missing and they may be installed."""
    found = shutil.which(program)
    if found is None and may_install_packages():
        wanted = " and ".join(packages)
        print(f"{program} is missing: installing Debian's {wanted}", file=sys.stderr)
        _run(["apt-get", "update"])
        _run(["apt-get", "install", "-y", "--no-install-recommends", *packages])
        found = shutil.which(program)
    if found is None:
        raise OtherClientsError(
            f"{program} is not on PATH: install it "
            f"(Debian and Ubuntu: apt-get install {' '.join(packages)})"
        )
    return found


def _run(
    command: Sequence[str],
    *,
    directory: Path = ROOT,
    surroundings: Mapping[str, str] | None = None,
) -> str:
    """What a command printed, which otherwise matters only when it fails."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=directory,
        env=surroundings,
    )
    if done.returncode != 0:
        raise OtherClientsError(
            f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout[-SAID_MAX:]}"
        )
    return done.stdout


if __name__ == "__main__":
    try:
        print(ensure_kafka_python(), ensure_kafkajs(), ensure_go_clients(), sep="\n")
    except OtherClientsError as problem:
        sys.exit(str(problem))
