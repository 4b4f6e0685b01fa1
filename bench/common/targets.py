"""The brokers under test: how each is started and stopped, and what its process has used.

Four targets, two pairs of equal durability:
- `ours-fsync` syncs before it answers, `kafka-flush` is Apache Kafka told to do the same;
- `ours-os` leaves syncing to the system, as `kafka`, which is Apache Kafka with its defaults, does.
Apache Kafka runs with the heap and the collector that its own start script gives it. A target's
processes are gone when `stop` returns.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from tools.apache_kafka import ApacheKafka
from tools.java import OLDEST_USABLE, find_java
from tools.kafka_jars import ensure_kafka_jars

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.001
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
LISTENING: Final = "listening on "
# What bin/kafka-server-start.sh and bin/kafka-run-class.sh pass to java.
KAFKA_JVM: Final = (
    *("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)


class BenchError(RuntimeError):
    """A broker or a load generator did not do its part; the message says which, and how."""


class Start(NamedTuple):
    """Seconds from the start of the process."""

    accepted: float
    answered: float


class Target(ABC):
    """One broker on a directory of its own. It may be started again after a stop."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name: Final = name
        self.directory: Final = directory
        self.address = ("127.0.0.1", 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Final = directory / "output"

    @property
    def bootstrap(self) -> str:
        host, port = self.address
        return f"{host}:{port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BenchError(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> Start:
        """Returns when the broker has answered a request."""
        self._prepare()
        self._output.unlink(missing_ok=True)
        begin = time.perf_counter()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            with self._first_connection(self._process) as connection:
                accepted = time.perf_counter() - begin
                ask_api_versions(connection)
                return Start(accepted, time.perf_counter() - begin)
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError):
                raise BenchError(f"{self.name} {error}:\n{self.said()}") from error
            raise

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def said(self) -> str:
        """The end of what the broker printed."""
        return self._output.read_text(encoding="utf-8", errors="replace")[-2000:]

    def _first_connection(self, process: subprocess.Popen[bytes]) -> socket.socket:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if (connection := self._connect_if_ready()) is not None:
                return connection
            if (status := process.poll()) is not None:
                raise BenchError(f"{self.name} ended with status {status}:\n{self.said()}")
            time.sleep(POLL_SECONDS)
        raise BenchError(f"{self.name} is not ready after {START_SECONDS:.0f} s:\n{self.said()}")

    @abstractmethod
    def _prepare(self) -> None:
        """What has to be there before the process starts; not part of the time to start."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _connect_if_ready(self) -> socket.socket | None: ...


class Ours(Target):
    """`onceflow serve` with the given durability."""

    def __init__(self, name: str, directory: Path, durability: str) -> None:
        super().__init__(name, directory)
        self._durability = durability

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def _command(self) -> list[str]:
        program = Path(sys.executable).with_name("onceflow")
        return [
            *(str(program), "serve", "--listen", "127.0.0.1:0"),
            *("--data-dir", str(self.directory / "data"), "--durability", self._durability),
            *("--log-format", "json"),
        ]

    def totals(self) -> Any:
        """What the broker said at its stop that it had done."""
        for line in reversed(self._output.read_text(encoding="utf-8").splitlines()):
            if line.startswith("{") and (numbers := json.loads(line).get("numbers")):
                return numbers
        raise BenchError(f"{self.name} did not say what it had done:\n{self.said()}")

    def _connect_if_ready(self) -> socket.socket | None:
        for line in self._output.read_text(encoding="utf-8", errors="replace").splitlines(True):
            if line.startswith(LISTENING) and line.endswith("\n"):
                host, _, port = line.removeprefix(LISTENING).strip().rpartition(":")
                self.address = (host, int(port))
                return socket.create_connection(self.address, timeout=START_SECONDS)
        return None


class Kafka(Target):
    """Apache Kafka, one node that is broker and controller."""

    def __init__(self, name: str, directory: Path, properties: Mapping[str, str]) -> None:
        super().__init__(name, directory)
        self._properties = properties
        self._jars = ensure_kafka_jars()
        self._config = directory / "server.properties"

    def _prepare(self) -> None:
        if not self.directory.exists():
            # One start by the tests' own tool leaves a formatted directory and its configuration.
            with ApacheKafka(self._jars, self.directory, properties=self._properties):
                pass
        listener = re.search(r"^listeners=PLAINTEXT://(.*?):(\d+)", self._config.read_text(), re.M)
        if listener is None:
            raise BenchError(f"{self._config} names no listener")
        self.address = (listener[1], int(listener[2]))

    def _command(self) -> list[str]:
        return [*java_command(self._jars, *KAFKA_JVM), "kafka.Kafka", str(self._config)]

    def _connect_if_ready(self) -> socket.socket | None:
        try:
            connection = socket.create_connection(self.address, timeout=START_SECONDS)
        except ConnectionRefusedError:
            return None
        if connection.getsockname() == connection.getpeername():
            # A port nobody listens on yet may be drawn for the caller, who then meets himself.
            connection.close()
            return None
        return connection


TARGETS: Final = ("ours-fsync", "kafka-flush", "ours-os", "kafka")


def make_target(name: str, directory: Path) -> Target:
    match name:
        case "ours-fsync":
            return Ours(name, directory, "fsync")
        case "ours-os":
            return Ours(name, directory, "os")
        case "kafka":
            return Kafka(name, directory, {})
        case "kafka-flush":
            return Kafka(name, directory, {"log.flush.interval.messages": "1"})
    raise BenchError(f"no target is called {name!r}: there are {', '.join(TARGETS)}")


def java_command(jars: Path, *options: str) -> list[str]:
    java = find_java()
    if java is None:
        raise BenchError(f"the bench needs Java {OLDEST_USABLE} or later on the PATH")
    return [str(java), *options, "-cp", f"{jars}/*"]


def ask_api_versions(connection: socket.socket) -> None:
    """One request and its answer: ApiVersions version 0, which every broker serves."""
    connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
    (size,) = struct.unpack(">i", receive(connection, 4))
    correlation_id, error = struct.unpack_from(">ih", receive(connection, size))
    if (correlation_id, error) != (1, 0):
        raise BenchError(f"ApiVersions answered error {error} to request {correlation_id}")


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("closed the connection")
        data += part
    return data


class Usage(NamedTuple):
    """What a broker, all its processes together, has used so far and holds now."""

    cpu_seconds: float
    resident_bytes: int


def usage(pid: int) -> Usage:
    processes = [pid, *descendants(pid)]
    return Usage(sum(map(cpu_seconds, processes)), sum(map(resident_bytes, processes)))


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            children += map(int, (task / "children").read_text().split())
    return children + [below for child in children for below in descendants(child)]


def cpu_seconds(pid: int) -> float:
    # The command's name stands in brackets and may hold spaces; utime is the 12th field behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
