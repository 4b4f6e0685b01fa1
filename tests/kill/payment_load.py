"""A steady stream of payments through a foreign client, and a reader behind it, on threads.

Everything that was acknowledged and everything that was read is kept, to be judged at the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from tests.kill.payment_clients import Client, Place

PER_SECOND: Final = 20_000
MOST_UNACKNOWLEDGED: Final = 4_000
PATIENCE_SECONDS: Final = 15.0
_CHUNK: Final = 400


class Load:
    """Runs from `start` to `stop`; what went wrong on a thread is raised by `check` and `stop`."""

    def __init__(self, client: Client, bootstrap: str) -> None:
        self._client = client
        self._bootstrap = bootstrap
        self._is_writing = threading.Event()
        self._is_reading = threading.Event()
        self._errors: list[Exception] = []
        self._writer = self._thread(self._write)
        self._reader = self._thread(self._read)
        self.sent = 0
        # Sets of pairs, not by place: what comes a second time must not cover up the first.
        self.acknowledged: set[tuple[Place, int]] = set()
        self.seen: set[tuple[Place, int]] = set()

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # raised where somebody waits
                self._errors.append(error)

        return threading.Thread(target=guarded, daemon=True)

    @property
    def in_flight(self) -> int:
        """Sent, and not yet acknowledged."""
        return self.sent - len(self.acknowledged)

    def start(self) -> None:
        self._is_writing.set()
        self._is_reading.set()
        self._writer.start()
        self._reader.start()

    def check(self) -> None:
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        """Returns when all that was sent is acknowledged."""
        self._is_writing.clear()
        self._writer.join()
        self._is_reading.clear()
        self._reader.join()
        self.check()

    def _write(self) -> None:
        writer = self._client.write(self._bootstrap, self._note)
        pause = _CHUNK / PER_SECOND
        due = time.monotonic()
        while self._is_writing.is_set():
            if self.in_flight < MOST_UNACKNOWLEDGED:
                first, self.sent = self.sent, self.sent + _CHUNK
                writer.send(range(first, first + _CHUNK))
            else:
                writer.send(())  # the broker is gone or slow: just look for answers
            due = max(due + pause, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        writer.close()

    def _note(self, number: int, place: Place) -> None:
        self.acknowledged.add((place, number))

    def _read(self) -> None:
        reader = self._client.read(self._bootstrap)
        while self._is_reading.is_set():
            self.seen.update(reader.poll())
        reader.close()


def read_back(
    client: Client,
    bootstrap: str,
    acknowledged: Iterable[tuple[Place, int]],
    found: dict[Place, int],
) -> None:
    """Finds all that is there, by a reader of its own, up to the last payments acknowledged.

    Gives up on those that do not come for a long while: they are lost.
    """
    last: dict[int, Place] = {}
    for place, _ in acknowledged:
        last[place.partition] = max(place, last.get(place.partition, place))
    awaited = set(last.values())
    reader = client.read(bootstrap)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while awaited and time.monotonic() < deadline:
        if came := reader.poll():
            found.update(came)
            awaited -= {place for place, _ in came}
            deadline = time.monotonic() + PATIENCE_SECONDS
    reader.close()
