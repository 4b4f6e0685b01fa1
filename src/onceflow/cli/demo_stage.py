"""Where the demo plays: a broker, a stream of payments into it, and one worker at a time.

`hit` starts a worker that stops at a dangerous moment, does there what the moment says, and returns
when bookings are committed again. Nothing is waited for by the clock alone: a worker tells where it
is, and whoever waits too long raises.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from onceflow.broker.embedded import Broker
from onceflow.cli.demo_moments import Moment, Point, Victim
from onceflow.cli.demo_worker import GROUP, PARTITIONS, PAYMENTS, QUIET
from onceflow.errors import OnceflowError

PER_SECOND: Final = 2_000
_CHUNK: Final = 50
_PATIENCE_SECONDS: Final = 60.0
_WORKER: Final = "onceflow.cli.demo_worker"
_FENCED: Final = ("_FENCED", "FENCED_INSTANCE_ID", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")


class DemoStuck(OnceflowError):
    """Something did not happen for too long, or happened that must not."""


class Survived(NamedTuple):
    """A moment, and how it went on."""

    moment: Moment
    booked: int
    """Payments booked before it."""
    next_commit_ms: float
    note: str = ""


class Worker:
    """A worker's process; what it tells comes out of `next`."""

    def __init__(self, bootstrap: str, point: Point | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", _WORKER, bootstrap, point.value if point else ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._where = f"to stop when {point.value}" if point else "to go on"
        self._told: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self._told.put(json.loads(line))
        self._told.put({"ended": "gone"})

    def next(self) -> dict[str, Any]:
        try:
            return self._told.get(timeout=_PATIENCE_SECONDS)
        except queue.Empty:
            raise DemoStuck(
                f"a worker ({self._where}) said nothing for {_PATIENCE_SECONDS:.0f} s"
            ) from None

    def wake(self) -> None:
        """Lets it go on from the point where it stopped."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Feeder:
    """Payments, on a thread, by an idempotent producer that outlives the broker."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {**QUIET, "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._refused: list[str] = []
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_CHUNK / PER_SECOND):
            for number in range(self.sent, self.sent + _CHUNK):
                value = json.dumps({"payment": number, "cents": 4200 + number % 100}).encode()
                self._producer.produce(
                    PAYMENTS, value, partition=number % PARTITIONS, on_delivery=self._delivered
                )
            self.sent += _CHUNK
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append(str(error))

    def stop(self) -> None:
        """Returns when all payments are acknowledged."""
        self._is_over.set()
        self._thread.join()
        left = self._producer.flush(_PATIENCE_SECONDS)
        if left or self._refused:
            raise DemoStuck(f"{left} payments without an answer; refused: {self._refused[:1]}")


class Stage:
    """Use it in a `with` block."""

    def __init__(self) -> None:
        self._broker = Broker(process=True, num_partitions=PARTITIONS)
        self._cleanup = ExitStack()
        self._worker: Worker | None = None
        self.feeder: Feeder | None = None
        self.booked = 0

    def __enter__(self) -> Self:
        self._cleanup.enter_context(self._broker)
        self._cleanup.callback(self._kill_worker)
        self.feeder = Feeder(self._broker.bootstrap)
        self.feeder.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    @property
    def payments(self) -> int:
        return 0 if self.feeder is None else self.feeder.sent

    def hit(self, moment: Moment) -> Survived:
        """Brings a worker to the moment, does what that says, and waits for the next booking."""
        self._kill_worker()
        worker = self._worker = Worker(self.bootstrap, moment.point)
        self._follow(worker, "point")
        booked, note = self.booked, ""
        started = time.monotonic()
        if moment.victim is Victim.WORKER:
            self._replace(worker)
        elif moment.victim is Victim.BROKER:
            self._broker.kill()
            self._broker.restart()
            worker.wake()
        else:
            note = self._wake_zombie(worker)
        self._follow(self._worker, "booked")
        return Survived(moment, booked, (time.monotonic() - started) * 1000, note)

    def _replace(self, worker: Worker) -> None:
        worker.kill()
        self._worker = Worker(self.bootstrap, None)

    def _wake_zombie(self, zombie: Worker) -> str:
        """Another worker commits, then the first one wakes up and tries to."""
        self._worker = Worker(self.bootstrap, None)
        self._follow(self._worker, "booked")
        zombie.wake()
        told = zombie.next()
        zombie.kill()
        reason = str(told.get("ended", ""))
        if reason not in _FENCED:
            raise DemoStuck(f"a worker that was replaced could go on: {told}")
        return f"fenced: {reason}"

    def _follow(self, worker: Worker, awaited: str) -> None:
        """Takes in what a worker tells, up to the first of that kind."""
        told: dict[str, Any] = {}
        while awaited not in told:
            told = worker.next()
            self.booked += int(told.get("booked", 0))
            if "ended" in told:
                raise DemoStuck(f"a worker ended that should have gone on: {told['ended']}")

    def finish(self) -> None:
        """No more payments come, and what has come is booked."""
        if self.feeder is not None and self._worker is not None:
            self.feeder.stop()
            while self._left_to_book() > 0:
                self._follow(self._worker, "booked")

    def _left_to_book(self) -> int:
        """By the offsets that the workers' group has committed."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**QUIET, "bootstrap.servers": self.bootstrap, "group.id": GROUP})
        places = [TopicPartition(PAYMENTS, each) for each in range(PARTITIONS)]
        committed = consumer.committed(places, _PATIENCE_SECONDS)
        consumer.close()
        return self.payments - sum(max(each.offset, 0) for each in committed)

    def _kill_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
