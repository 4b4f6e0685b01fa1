"""What goes wrong in the demo: who is hit, at which named point of a batch, and by what means.

A driver or task that comes to a point asks over a socket, and waits for the answer. The strike
happens meanwhile, so it hits any process exactly at that point. Tasks load this module, so it needs
nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, NamedTuple, Self

_HOST: Final = "127.0.0.1"
_BACKLOG: Final = 64


class Arrival(NamedTuple):
    """A process at a point."""

    driver: str
    """The driver that it is, or works for."""
    point: str
    pid: int


@dataclass(frozen=True)
class Asking:
    """What is put at the named points of a driver; it goes to the tasks as it is."""

    port: int
    driver: str

    def __call__(self, point: str) -> None:
        """Returns when nothing, or nothing more, happens here."""
        arrival = Arrival(self.driver, point, os.getpid())
        with (
            socket.create_connection((_HOST, self.port)) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(json.dumps(arrival).encode() + b"\n")
            answers.readline()


class Held:
    """Waits for the first one that comes to a point, and holds it there until it is released."""

    def __init__(self, driver: str, point: str) -> None:
        self.driver, self.point = driver, point
        self.arrivals: list[Arrival] = []
        """The one that has come, if it has."""
        self._is_released = threading.Event()

    def release(self) -> None:
        self._is_released.set()

    def wait(self) -> None:
        self._is_released.wait()


class Points:
    """Answers at all points; use it in a `with` block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.arrivals: Counter[tuple[str, str]] = Counter()
        """How often, by driver and point."""
        self._next: Held | None = None
        self._server = _server(self._answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def hold(self, driver: str, point: str) -> Held:
        """The next one of that driver that comes there waits."""
        with self._lock:
            self._next = Held(driver, point)
            return self._next

    def _answer(self, arrival: Arrival) -> None:
        """Returns when the process that came may go on."""
        driver, point, _ = arrival
        with self._lock:
            held = self._next
            is_met = held is not None and (held.driver, held.point) == (driver, point)
            if held is not None and is_met:
                held.arrivals.append(arrival)
                self._next = None
            self.arrivals[driver, point] += 1
        if held is not None and is_met:
            held.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _server(answer: Callable[[Arrival], None]) -> socketserver.TCPServer:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                answer(Arrival(*json.loads(self.rfile.readline())))
                self.wfile.write(b"go on\n")
            except OSError:
                return  # it was killed while it waited

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = _BACKLOG

    return Server((_HOST, 0), Handler)


COMMITTED: Final = "after EndTxn"
"""The point that a driver reaches when a batch is committed, before Spark has noted that."""


class Victim(Enum):
    """Who is hit."""

    WORKER = "a Python worker"
    DRIVER = "the driver, Python and JVM"
    BROKER = "the broker"
    ZOMBIE = "nobody"
    """The driver is stopped, taken for dead and replaced, and then goes on."""


class Strike(NamedTuple):
    """One thing that goes wrong."""

    victim: Victim
    point: str
    words: str
    then: str
    """What is done about it."""


STRIKES: Final = (
    Strike(
        Victim.WORKER,
        "mid-write",
        "Python worker killed while it writes",
        "the batch is written again",
    ),
    Strike(Victim.BROKER, "before EndTxn", "broker killed inside a transaction", "it starts again"),
    Strike(
        Victim.DRIVER,
        COMMITTED,
        "driver killed after the commit, before Spark notes it",
        "Spark starts again",
    ),
    Strike(
        Victim.ZOMBIE,
        "before EndTxn",
        "driver frozen, replaced, woken up",
        "a second Spark starts",
    ),
)


class Survived(NamedTuple):
    """A strike, and how it went on."""

    strike: Strike
    at_s: float
    """When it was, in seconds from the beginning."""
    again_after_s: float
    """From the strike to the next batch that was committed."""
    note: str = ""


def planned(count: int) -> list[Strike]:
    """So many of them, from the first on, and round again."""
    return [STRIKES[number % len(STRIKES)] for number in range(count)]
