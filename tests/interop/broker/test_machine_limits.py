"""A broker on a small machine, with few descriptors or a small disk: it refuses, and goes on."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.interop.onceflow_server import OnceflowServer

SECONDS = 60.0
DESCRIPTORS = 256
PARTITIONS = 600
"""More than twice as many as there are descriptors."""
DISK_MB = 96
MB = 1 << 20


def with_descriptors(soft: int, hard: int) -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit -S -n {soft} && ulimit -H -n {hard} && exec "$@"', "sh")


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def produce(bootstrap: str, topic: str, values: dict[int, list[bytes]], **settings: Any) -> int:
    """One producer, values by partition; how many were acknowledged."""
    acknowledged = 0

    def delivered(error: KafkaError | None, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **settings})
    for partition, some in values.items():
        for value in some:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
            producer.poll(0)
    producer.flush(SECONDS)
    return acknowledged


def consume(bootstrap: str, topic: str, count: int) -> dict[int, list[bytes]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    )
    found: dict[int, list[bytes]] = {}
    try:
        consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
        until = time.monotonic() + SECONDS
        while sum(map(len, found.values())) < count:
            assert time.monotonic() < until, f"found only {sum(map(len, found.values()))}"
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None, message.error()
                found.setdefault(message.partition() or 0, []).append(message.value() or b"")
    finally:
        consumer.close()
    return found


def create(bootstrap: str, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(SECONDS)


def is_created(bootstrap: str, topic: str) -> bool:
    """False while the disk is full: what is deleted makes room a while after the answer."""
    try:
        create(bootstrap, topic)
    except KafkaException as problem:
        if problem.args[0].code() != KafkaError.KAFKA_STORAGE_ERROR:
            raise
        return False
    return True


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(SECONDS)


def open_descriptors(server: OnceflowServer) -> int:
    return sum(1 for _ in Path(f"/proc/{server.pid}/fd").iterdir())


def idle_connections(bootstrap: str, count: int, stack: ExitStack) -> list[socket.socket]:
    host, _, port = bootstrap.rpartition(":")
    return [
        stack.enter_context(socket.create_connection((host, int(port)), SECONDS))
        for _ in range(count)
    ]


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return bool(sock.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("durability", ["fsync", pytest.param("os", marks=pytest.mark.long)])
def test_more_partitions_and_connections_than_descriptors(tmp_path: Path, durability: str) -> None:
    through = with_descriptors(DESCRIPTORS, DESCRIPTORS)
    settings = {"durability": durability}
    expected = {partition: [b"%d" % partition] for partition in range(PARTITIONS)}
    with (
        ExitStack() as stack,
        OnceflowServer(tmp_path / "data", settings=settings, through=through) as server,
    ):
        create(server.bootstrap, "many", PARTITIONS)
        assert open_descriptors(server) < DESCRIPTORS // 2
        idle = idle_connections(server.bootstrap, DESCRIPTORS, stack)
        wait_until(lambda: sum(map(is_open, idle)) < DESCRIPTORS // 4)
        for sock in idle[: DESCRIPTORS // 8]:
            sock.close()
        assert produce(server.bootstrap, "many", expected) == PARTITIONS
        assert consume(server.bootstrap, "many", PARTITIONS) == expected
        assert open_descriptors(server) < DESCRIPTORS
        server.kill()
        assert "max.connections is 1000" in server.log_text
        assert "the disk failed" not in server.log_text
    with OnceflowServer(tmp_path / "data", settings=settings, through=through) as server:
        assert consume(server.bootstrap, "many", PARTITIONS) == expected
        delete(server.bootstrap, "many")


def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    through = with_descriptors(64, 2048)
    with OnceflowServer(tmp_path / "data", settings={}, through=through) as server:
        limits = Path(f"/proc/{server.pid}/limits").read_text(encoding="utf-8")
        (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert line.split()[3:5] == ["2048", "2048"]


# --- a small disk -------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    """A data directory, and what a broker is run through to have it on a file system of its own,
    which no other process sees."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = f'mount -t tmpfs -o size={DISK_MB}m none {directory} && exec "$@"'
    through = ("unshare", "--mount", "sh", "-c", mount, "sh")
    tried = subprocess.run([*through, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no private file system can be mounted: {tried.stderr.decode()}")
    return directory / "data", through


def fill(bootstrap: str, topic: str) -> int:
    """Appends megabytes until some are refused; how many were taken."""
    for taken in range(0, DISK_MB, 4):
        values = [bytes(900_000) for _ in range(4)]
        some = produce(bootstrap, topic, {0: values}, **{"message.timeout.ms": 4000})
        if some < len(values):
            return taken + some
    raise AssertionError("the disk was never full")


def take_the_rest(server: OnceflowServer, directory: Path) -> None:
    """As another program that fills the disk to the last byte."""
    inside = ["nsenter", "--target", str(server.pid), "--mount"]
    subprocess.run(
        [*inside, "dd", "if=/dev/zero", f"of={directory.parent}/foreign", "bs=4096"],
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_full_disk_is_relieved_by_deleting_a_topic(
    small_disk: tuple[Path, tuple[str, ...]], durability: str
) -> None:
    directory, through = small_disk
    settings = {"durability": durability}
    with OnceflowServer(directory, settings=settings, through=through) as server:
        create(server.bootstrap, "large")
        create(server.bootstrap, "small")
        before = fill(server.bootstrap, "large")
        assert before > 10
        delete(server.bootstrap, "large")
        wait_until(lambda: is_created(server.bootstrap, "again"))
        assert produce(server.bootstrap, "small", {0: [b"x" * 500_000] * 10}) == 10
        taken = 0

        def has_room_again() -> bool:
            """Not all of it at once: a deletion frees files a while after its answer."""
            nonlocal taken
            taken += fill(server.bootstrap, "again")
            return taken > before // 2

        wait_until(has_room_again)
        take_the_rest(server, directory)
        with pytest.raises(KafkaException):
            create(server.bootstrap, "refused")
        delete(server.bootstrap, "again")
        assert produce(server.bootstrap, "small", {0: [b"x" * 500_000] * 10}) == 10
        assert "the disk failed" not in server.log_text
