"""Members that die (kill -9) and members that stand still (SIGSTOP), on both brokers: what they had
goes to others, nothing is lost, and what a member does that comes back too late does no harm.

And what the order of processing and committing means: committing first loses, committing last
repeats."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from onceflow.client.admin.admin import Admin
from tests.interop.client.consumer.polled_consumers import script, write
from tests.interop.harness import Names, Transcript

pytestmark = pytest.mark.interop

PARTITIONS = 4
PATIENCE_SECONDS = 60.0
SESSION_MS = 6000
"""The shortest that brokers allow by default."""


class Process:
    """A member; `words` is what it has said so far."""

    def __init__(self, **settings: Any) -> None:
        self.words: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.interop.client.consumer.member_process",
                json.dumps(settings),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def until(self, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next word that is good."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            word = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert word is not None, f"it ended: {self.words}"
            self.words.append(word)
            if good(word):
                return word

    def until_it_has(self, partitions: int) -> None:
        held: set[int] = set()

        def enough(word: dict[str, Any]) -> bool:
            if word["word"] == "assigned":
                held.update(word["partitions"])
            elif word["word"] in ("revoked", "lost"):
                held.difference_update(word["partitions"])
            return len(held) == partitions

        for word in self.words:
            enough(word)
        if len(held) != partitions:
            self.until(enough)

    def signal(self, which: signal.Signals) -> None:
        self._process.send_signal(which)

    def kill(self) -> None:
        """And hear the rest of what it said."""
        self._process.kill()
        self._drain()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._drain()
        assert self.words[-1] == {"word": "closed"}

    def _drain(self) -> None:
        self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        while (word := self._lines.get(timeout=PATIENCE_SECONDS)) is not None:
            self.words.append(word)

    def end(self) -> None:
        """Whatever state it is in."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                self._reader.join(PATIENCE_SECONDS)
                pipe.close()

    @property
    def did(self) -> list[str]:
        return [word["value"] for word in self.words if word["word"] == "did"]


class World:
    """One topic and one group on one broker."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self.names = Names.fresh(bootstrap)
        self.topic = self.names("topic")
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": self.names("group"),
            "topic": self.topic,
            "order": "after",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            **settings,
        }
        self.processes: list[Process] = []
        self._written = 0

    def start(self, **settings: Any) -> Process:
        process = Process(**{**self._settings, **settings})
        self.processes.append(process)
        return process

    def write(self, count: int) -> list[str]:
        values = [str(number) for number in range(self._written, self._written + count)]
        self._written += count

        async def work(admin: Admin, names: Names, transcript: Transcript) -> None:
            if not any(topic.name == self.topic for topic in await admin.list_topics()):
                await admin.create_topic(self.topic, partitions=PARTITIONS)
            await write(names.bootstrap, self.topic, [value.encode() for value in values])

        script(work)(self.names.bootstrap, self.names, Transcript())
        return values

    def committed(self) -> int:
        found: list[int] = []

        async def work(admin: Admin, names: Names, transcript: Transcript) -> None:
            found.extend((await admin.committed_offsets(self.names("group"))).values())

        script(work)(self.names.bootstrap, self.names, Transcript())
        return sum(found)


@contextmanager
def a_world(bootstrap: str, **settings: Any) -> Iterator[World]:
    world = World(bootstrap, **settings)
    try:
        yield world
    finally:
        for process in world.processes:
            process.end()


@pytest.fixture(params=["apache_kafka", "onceflow_server"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize(
    "strategy", ["range", pytest.param("cooperative-sticky", marks=pytest.mark.long)]
)
def test_a_member_that_is_killed_is_replaced(bootstrap: str, strategy: str) -> None:
    with a_world(bootstrap, **{"partition.assignment.strategy": strategy}) as world:
        values = world.write(40)
        one = world.start()
        one.until_it_has(PARTITIONS)
        other = world.start()
        other.until_it_has(PARTITIONS // 2)
        values += world.write(40)
        one.until(lambda word: word["word"] == "did")
        one.kill()
        # When its session is over, the other one has all, and does what was not committed.
        other.until_it_has(PARTITIONS)
        values += world.write(40)
        other.until(lambda word: world.committed() == len(values))
        other.close()
        done = Counter(one.did + other.did)
        assert set(done) == set(values)
        assert sum(done.values()) - len(values) <= 40  # of one poll at most


@pytest.mark.parametrize(
    "strategy", [pytest.param("range", marks=pytest.mark.long), "cooperative-sticky"]
)
def test_a_member_that_stood_still_is_refused_and_comes_back(bootstrap: str, strategy: str) -> None:
    with a_world(bootstrap, **{"partition.assignment.strategy": strategy}) as world:
        values = world.write(8)
        one = world.start()
        one.until_it_has(PARTITIONS)
        one.until(lambda word: word["word"] == "committed")
        other = world.start()
        other.until_it_has(PARTITIONS // 2)
        one.until_it_has(PARTITIONS // 2)
        one.signal(signal.SIGSTOP)
        other.until_it_has(PARTITIONS)
        values += world.write(40)
        other.until(lambda word: world.committed() == len(values))
        one.signal(signal.SIGCONT)
        one.until(lambda word: word["word"] == "lost")
        other.until_it_has(PARTITIONS // 2)
        one.until_it_has(PARTITIONS // 2)
        values += world.write(40)
        one.until(lambda word: word["word"] == "committed")
        for process in (one, other):
            process.close()
        assert set(one.did + other.did) == set(values)
        assert world.committed() == len(values)


@pytest.mark.parametrize(
    ("bootstrap", "order"),
    [
        ("apache_kafka", "before"),
        ("onceflow_server", "after"),
        pytest.param("apache_kafka", "after", marks=pytest.mark.long),
        pytest.param("onceflow_server", "before", marks=pytest.mark.long),
    ],
    indirect=["bootstrap"],
)
def test_committing_before_the_work_loses_and_after_it_repeats(bootstrap: str, order: str) -> None:
    """Killed between the two: at most once, or at least once."""
    with a_world(bootstrap, order=order) as world:
        values = world.write(200)
        one = world.start(**{"group.instance.id": "worker", "max.poll.records": 50})
        # The first word after the first half of the pair.
        first = "committed" if order == "before" else "did"
        one.until(lambda word: word["word"] == first)
        one.signal(signal.SIGSTOP)
        one.kill()
        committed = world.committed()
        again = world.start(**{"group.instance.id": "worker"})
        again.until(lambda word: world.committed() == len(values))
        again.close()
        done = Counter(one.did + again.did)
        missing = set(values) - set(done)
        twice = {value for value, times in done.items() if times > 1}
        if order == "before":
            assert not twice
            assert len(missing) == committed - len(one.did)
        else:
            assert not missing
            assert len(twice) == len(one.did) - committed
