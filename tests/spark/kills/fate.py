"""Who dies, and when: every named point of a batch, in drivers and in tasks, asks one server.

The server keeps one fault at a time for a point. Who comes there meets it: the fault is done while
that process waits for its answer, so that it hits exactly there, whichever process it is for.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

GO_ON: Final = "go on"
FAIL: Final = "fail"
HOST: Final = "127.0.0.1"


class TaskFails(Exception):
    """What a task, or a driver, fails with when it is told to."""


class Arrival(NamedTuple):
    """A process at a point."""

    driver: str
    """Which driver it belongs to."""
    point: str
    pid: int
    parent: int
    """Of a Python worker: the daemon that forked it."""
    grandparent: int
    """Of a Python worker: the JVM that runs the task."""


@dataclass(frozen=True)
class Fate:
    """What is put at the named points; goes to tasks as it is."""

    port: int
    driver: str

    def __call__(self, point: str) -> None:
        """Returns when nothing, or nothing more, happens here."""
        parent = os.getppid()
        arrival = Arrival(self.driver, point, os.getpid(), parent, parent_of(parent))
        with (
            socket.create_connection((HOST, self.port)) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(json.dumps(arrival).encode() + b"\n")
            answer = answers.readline().decode().strip()
        if answer == FAIL:
            raise TaskFails(f"{point}: for a test")


def parent_of(pid: int) -> int:
    """0 when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[1])


Act = Callable[[Arrival], str]
"""Does what is to happen and says how the process goes on, if it does."""


class Doom(NamedTuple):
    """A fault that waits for its moment."""

    point: str
    spared: int
    """So many arrivals at the point pass unharmed."""
    act: Act
    driver: str
    """Only those of this driver meet it."""


class FateServer:
    """Answers all points. Used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doom: Doom | None = None
        self._watch: Callable[[Arrival], None] | None = None
        self.has_struck = threading.Event()
        """Since the last fault was armed."""
        self.struck: list[Arrival] = []
        """Everybody who has met a fault, in order."""
        fate = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    answer = fate.answer(Arrival(*json.loads(self.rfile.readline())))
                    self.wfile.write(f"{answer}\n".encode())
                except OSError:
                    return  # killed while it waited

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

        self._server = Server((HOST, 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def of(self, driver: str) -> Fate:
        """The hook for one driver and its tasks."""
        return Fate(self._server.server_address[1], driver)

    def arm(self, doom: Doom) -> None:
        """From now on the fault waits for its moment."""
        with self._lock:
            self._doom = doom
            self.has_struck.clear()

    def disarm(self) -> None:
        with self._lock:
            self._doom = None

    def watch(self, watcher: Callable[[Arrival], None] | None) -> None:
        """Is told of every arrival, before anything happens there; may arm."""
        with self._lock:
            self._watch = watcher

    def answer(self, arrival: Arrival) -> str:
        watcher = self._watch
        if watcher is not None:
            watcher(arrival)
        with self._lock:
            doom = self._doom
            if doom is None or (doom.point, doom.driver) != (arrival.point, arrival.driver):
                return GO_ON
            if doom.spared:
                self._doom = doom._replace(spared=doom.spared - 1)
                return GO_ON
            self._doom = None
            self.struck.append(arrival)
        try:
            return doom.act(arrival)
        finally:
            self.has_struck.set()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
