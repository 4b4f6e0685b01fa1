"""A broker that dies at each named point of a commit: the commit has one outcome, everywhere.

The client is confluent-kafka. It asks again until the broker is back; then what it committed must
be there once, offsets included, whether the broker had decided before it died or not.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.interop.onceflow_server import READY
from tests.kill.doomed_broker import Point

SECONDS = 60.0
AT_ONCE = 5
OUTPUT_PARTITIONS = 2
CLIENT: dict[str, Any] = {
    "log_level": 0,
    "error_cb": lambda _: None,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    # Else it forgets its only broker while that is gone, and may wait for the forgotten one.
    "metadata.recovery.strategy": "none",
}


class Process:
    """A broker's process, told apart by its first arguments."""

    def __init__(self, directory: Path, listen: str, *program: str) -> None:
        settings = ["--listen", listen, "--data-dir", str(directory / "data")]
        with (directory / "err").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *program, *settings],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(READY), (directory / "err").read_text()
        self.bootstrap = line.removeprefix(READY).strip()

    def dies(self) -> None:
        assert self._process.wait(SECONDS) == -9
        self._close()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()


def commit_twice(bootstrap: str, doomed: Process, directory: Path) -> Process:
    """Two transactions of five records each; the broker dies in the second commit."""
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap})
    wanted = [NewTopic("in", 1), NewTopic("out", OUTPUT_PARTITIONS)]
    for made in admin.create_topics(wanted).values():
        made.result(SECONDS)
    reader = Consumer({**CLIENT, "bootstrap.servers": bootstrap, "group.id": "g"})
    producer = Producer({**CLIENT, "bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(SECONDS)
    with ThreadPoolExecutor(1) as beside:
        for number in range(2):
            producer.begin_transaction()
            for each in range(number * 5, number * 5 + 5):
                producer.produce("out", b"%d" % each, partition=each % OUTPUT_PARTITIONS)
            producer.flush(SECONDS)
            offsets = [TopicPartition("in", 0, number * 5 + 5)]
            producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), SECONDS)
            ended = beside.submit(producer.commit_transaction, SECONDS)
            if number == 1:
                doomed.dies()
                again = Process(directory, bootstrap, "onceflow", "serve")
            ended.result(SECONDS)
    reader.close()
    return again


def committed_records(bootstrap: str) -> list[int]:
    reader = Consumer(
        {
            **CLIENT,
            "bootstrap.servers": bootstrap,
            "group.id": "auditor",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition("out", each, OFFSET_BEGINNING) for each in range(OUTPUT_PARTITIONS)]
    reader.assign(places)
    found: list[int] = []
    at_end: set[Any] = set()
    while len(at_end) < OUTPUT_PARTITIONS:
        message = reader.poll(SECONDS)
        assert message is not None, f"only {found} and the end of {at_end}"
        error, value = message.error(), message.value()
        if error is None and value is not None:
            found.append(int(value))
        else:
            assert error is not None
            assert error.code() == KafkaError._PARTITION_EOF
            at_end.add(message.partition())
    reader.close()
    return sorted(found)


def committed_offset(bootstrap: str) -> int:
    reader = Consumer({**CLIENT, "bootstrap.servers": bootstrap, "group.id": "g"})
    (found,) = reader.committed([TopicPartition("in", 0)], SECONDS)
    reader.close()
    return int(found.offset)


def die_and_count(directory: Path, point: Point, how: str) -> tuple[list[int], int]:
    directory.mkdir()
    doomed = Process(directory, "127.0.0.1:0", "tests.kill.doomed_broker", point.value, how)
    again = None
    try:
        again = commit_twice(doomed.bootstrap, doomed, directory)
        return committed_records(again.bootstrap), committed_offset(again.bootstrap)
    finally:
        for each in (doomed, again):
            if each is not None:
                each.stop()


def test_a_commit_has_one_outcome_wherever_the_broker_dies(tmp_path: Path) -> None:
    ways = list(product(Point, ("durable", "gathered")))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [
            pool.submit(die_and_count, tmp_path / f"{point.value}-{how}", point, how)
            for point, how in ways
        ]
    for (point, how), run in zip(ways, runs, strict=True):
        assert run.result() == (list(range(10)), 10), f"{point.value}, {how}"
