"""Members of a group that others wrote: confluent-kafka in a thread, and Apache Kafka's own client
in a JVM. Each says what it holds and what it has received."""

from __future__ import annotations

import json
import subprocess
import threading
from types import TracebackType
from typing import Any, Final, Protocol, Self

import confluent_kafka

from tools.java import find_java
from tools.kafka_jars import classpath_of_newest_client

JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")
JAVA_STRATEGIES: Final = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
PATIENCE_SECONDS: Final = 60.0
SESSION_MS: Final = 10_000


class ForeignMember(Protocol):
    """In its group while the block lasts."""

    received: int

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @property
    def held(self) -> frozenset[int]:
        """The partitions that it has now."""
        ...


class ConfluentMember:
    """librdkafka's."""

    def __init__(self, bootstrap: str, group_id: str, topic: str, strategy: str) -> None:
        self.received = 0
        self._held: frozenset[int] = frozenset()
        self._topic = topic
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "partition.assignment.strategy": strategy,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
        }
        self._stopped = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_SECONDS)
        if error is None and self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(self._settings)
        try:
            consumer.subscribe([self._topic])
            while not self._stopped.is_set():
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    self.received += 1
                self._held = frozenset(each.partition for each in consumer.assignment())
        except BaseException as problem:
            self._problem = problem
        finally:
            consumer.close()

    @property
    def held(self) -> frozenset[int]:
        return self._held


class JavaMember:
    """Apache Kafka's, by its VerifiableConsumer, which says what happens to it."""

    def __init__(self, bootstrap: str, group_id: str, topic: str, strategy: str) -> None:
        self.received = 0
        self._held: set[int] = set()
        self._words: list[str] = []
        self._command = [
            str(find_java()),
            *JVM_OPTIONS,
            "-cp",
            classpath_of_newest_client(),
            "org.apache.kafka.tools.VerifiableConsumer",
            *("--bootstrap-server", bootstrap),
            *("--group-id", group_id),
            *("--topic", topic),
            *("--session-timeout", str(SESSION_MS)),
            *("--reset-policy", "earliest"),
            *("--assignment-strategy", JAVA_STRATEGIES[strategy]),
        ]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()  # upon which it closes its consumer
        try:
            self._process.wait(PATIENCE_SECONDS)
        finally:
            self._process.kill()
            self._thread.join(PATIENCE_SECONDS)
            if self._process.stdout is not None:
                self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word = json.loads(line)
            places = {each["partition"] for each in word.get("partitions", ())}
            if word["name"] == "partitions_assigned":
                self._held |= places
            elif word["name"] == "partitions_revoked":
                self._held -= places
            elif word["name"] == "records_consumed":
                self.received += word["count"]

    @property
    def held(self) -> frozenset[int]:
        assert self._process.poll() is None, "it has ended"
        return frozenset(self._held)
