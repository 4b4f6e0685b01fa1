"""Processes with sessions, struck at moments that a seed chooses: kill -9, SIGSTOP for longer than
their place in the group is kept, and SIGSTOP while another one takes their name.

All of them copy one topic. In the end a client of others reads the copy: every record has to be
there once, and in order.
"""

from __future__ import annotations

import asyncio
import json
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from enum import Enum
from typing import Any, Final, NamedTuple

from onceflow.client.admin.admin import Admin
from onceflow.types import TopicPartition
from tests.interop.client.cluster.three_nodes import read_committed
from tests.interop.client.consumer.polled_consumers import write
from tests.interop.client.session.session_process import FENCED
from tests.interop.decided import until_none_is_open
from tests.interop.harness import Names, eventually

PARTITIONS: Final = 4
FEED: Final = 60
PATIENCE_SECONDS: Final = 90.0
SESSION_MS: Final = 6_000
"""The shortest that brokers allow by default."""
MOMENTS: Final = ("given", "half", "sent", "offsets", "offsets sent", "commit", "committed")


class Kind(Enum):
    """What is done to a process."""

    KILL = "killed, and started again"
    REPLACE = "killed, and another instance is started"
    STOP = "stopped for longer than its session"
    ZOMBIE = "stopped while another one takes its name"


class Strike(NamedTuple):
    """One that was done."""

    kind: Kind
    instance: str
    moment: str


class Process:
    """A session; `moments` is what it says."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.said: queue.Queue[str | None] = queue.Queue()
        self.last = ""
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.interop.client.session.session_process",
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
            self.last = json.loads(line)["word"]
            self.said.put(self.last)
        self.said.put(None)

    def until(self, word: str, seconds: float) -> bool:
        """Whether it says so within the time, from now on."""
        while not self.said.empty():
            self.said.get()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                if self.said.get(timeout=left) == word:
                    return True
            except queue.Empty:
                break
        return False

    def signal(self, which: signal.Signals) -> None:
        self._process.send_signal(which)

    def kill(self) -> None:
        self._process.kill()
        self._wait()

    def close(self) -> None:
        """In an orderly way."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._wait()
        assert (status, self.last) == (0, "closed"), f"it ended with {status} after {self.last!r}"

    def fenced(self) -> None:
        """It has to end, because another one has its name."""
        status = self._wait()
        assert (status, self.last) == (FENCED, "fenced"), f"{status} after {self.last!r}"

    def _wait(self) -> int:
        status = self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return status


class Strikes:
    """One run: a topic, its copy, members and what happens to them."""

    def __init__(self, bootstrap: str, seed: int, members: int = 3) -> None:
        self.names = Names.fresh(bootstrap)
        self.rand = random.Random(seed)
        self.done: list[Strike] = []
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": self.names("group"),
            "topics": self.names("in"),
            "out": self.names("out"),
            "max.poll.records": 5,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            # A member that is gone for good must not keep the others waiting for long.
            "transaction.timeout.ms": 10_000,
            "max.poll.interval.ms": 15_000,
        }
        self._written = 0
        self._instances = 0
        self.processes: dict[str, Process] = {}
        asyncio.run(self._create())
        self.feed()
        for _ in range(members):
            self._start(self._new_instance())

    # --- members --------------------------------------------------------------------------------

    def _new_instance(self) -> str:
        self._instances += 1
        return f"worker-{self._instances}"

    def _start(self, instance: str) -> None:
        # Every other one is static: it is back in its place at once.
        is_static = int(instance.rpartition("-")[2]) % 2
        name = "group.instance.id" if is_static else "instance"
        how = {**self._settings, name: instance}
        if self.rand.random() < 0.3:
            how["commit.interval.ms"] = 200
        self.processes[instance] = Process(how)

    def strike(self) -> Strike:
        """One member, at a moment of its work; then the group has to make progress."""
        instance = self.rand.choice(sorted(self.processes))
        moment = self.rand.choice(MOMENTS)
        kind = self.rand.choices(list(Kind), weights=(6, 1, 1, 1))[0]
        process = self.processes[instance]
        self.feed()
        process.until(moment, 3.0)  # one that has nothing to do is struck anyway
        self._struck(kind, instance, process)
        strike = Strike(kind, instance, moment)
        self.done.append(strike)
        before = self.copied()
        self.feed()
        eventually(self.copied, lambda now: now > before, seconds=PATIENCE_SECONDS)
        return strike

    def _struck(self, kind: Kind, instance: str, process: Process) -> None:
        if kind is Kind.KILL:
            process.kill()
            self._start(instance)
        elif kind is Kind.REPLACE:
            process.kill()
            del self.processes[instance]
            self._start(self._new_instance())
        elif kind is Kind.STOP:
            process.signal(signal.SIGSTOP)
            time.sleep(self.rand.choice((0.5, SESSION_MS / 1000 + 2)))
            process.signal(signal.SIGCONT)
        else:
            process.signal(signal.SIGSTOP)
            self._start(instance)
            self.processes[instance].until("ready", PATIENCE_SECONDS)
            process.signal(signal.SIGCONT)
            # A static one is told by its group, any other by its next transaction.
            self.feed()
            process.fenced()

    def end(self) -> None:
        """Whatever state they are in."""
        for process in self.processes.values():
            process.kill()

    # --- topics ---------------------------------------------------------------------------------

    async def _create(self) -> None:
        async with Admin(self.names.bootstrap) as admin:
            for topic in ("in", "out"):
                await admin.create_topic(self.names(topic), partitions=PARTITIONS)

    def feed(self) -> None:
        values = [b"%d" % number for number in range(self._written, self._written + FEED)]
        self._written += FEED
        asyncio.run(write(self.names.bootstrap, self.names("in"), values))

    def copied(self) -> int:
        """How far the group has come."""

        async def ask() -> int:
            async with Admin(self.names.bootstrap) as admin:
                return sum((await admin.committed_offsets(self.names("group"))).values())

        return asyncio.run(ask())

    def finish(self) -> None:
        """All records are copied, and all members end in peace."""
        eventually(self.copied, lambda now: now == self._written, seconds=PATIENCE_SECONDS)
        for process in self.processes.values():
            process.close()
        self.processes.clear()

    def deviations(self) -> list[str]:
        """What a client of others finds to be wrong."""
        until_none_is_open(self.names.bootstrap, self.names("group"))
        places = [TopicPartition(self.names("out"), number) for number in range(PARTITIONS)]
        found = read_committed(self.names.bootstrap, places)
        wrong = []
        for number, records in found.items():
            values = [int(value) for _, value in records]
            expected = list(range(number, self._written, PARTITIONS))
            if values != expected:
                missing = sorted(set(expected) - set(values))
                twice = sorted({each for each in values if values.count(each) > 1})
                wrong.append(f"partition {number}: missing {missing}, more than once {twice}")
        return wrong
