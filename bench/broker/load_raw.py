"""Load by a client that costs next to nothing: frames made beforehand, one in flight a connection.

    python -m bench.broker.load_raw rate --bootstrap HOST:PORT --topic NAME --partitions 200 ...

A process of its own, so that its cost is not the bench's; prints one line of JSON. Every answer is
checked for its error code, and every partition has taken a batch before the clock starts.
- `rate`: requests answered a second over many connections, each going round all partitions;
  `--idle` says how many silent connections are open meanwhile, several numbers one after the other.
- `latency`: milliseconds from request to answer, on one connection.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from bench.common.targets import BenchError, ask_api_versions, receive
from onceflow.records.batch import HEADER_SIZE, seal

PRODUCE_KEY: Final = 0
PRODUCE_VERSION: Final = 7
ACKS_ALL: Final = -1
GIVE_UP_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 0.3
# Unknown topic or partition, leader not available, not leader: the topic is still being made.
NOT_YET: Final = frozenset({3, 5, 6})

Numbers = dict[str, list[float]]


class Frames(NamedTuple):
    """Produce requests, one for each partition, and how to read their answers."""

    requests: list[bytes]
    answer_bytes: int
    error_at: int


def varint(value: int) -> bytes:
    """Zigzag, base 128, as the fields of a record are written."""
    value = value << 1 ^ value >> 63
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def make_batch(records: int, record_bytes: int) -> bytes:
    body = bytearray(HEADER_SIZE)
    for offset in range(records):
        no_key, no_headers = varint(-1), varint(0)
        record = b"\0" + varint(0) + varint(offset) + no_key
        record += varint(record_bytes) + os.urandom(record_bytes) + no_headers
        body += varint(len(record)) + record
    now = int(time.time() * 1000)
    batch = seal(
        body,
        attributes=0,
        last_offset_delta=records - 1,
        base_timestamp=now,
        max_timestamp=now,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=records,
    )
    return bytes(batch.buffer)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def make_frames(topic: str, partitions: int, records: int, record_bytes: int) -> Frames:
    """A request's correlation id is its partition's number."""
    batch = make_batch(records, record_bytes)
    requests = []
    for partition in range(partitions):
        body = struct.pack(">hhi", PRODUCE_KEY, PRODUCE_VERSION, partition) + text("bench")
        body += struct.pack(">hhii", -1, ACKS_ALL, int(GIVE_UP_SECONDS * 1000), 1) + text(topic)
        body += struct.pack(">iii", 1, partition, len(batch)) + batch
        requests.append(struct.pack(">i", len(body)) + body)
    # Size, correlation id, one topic, its name, one partition, its number: then the error code;
    # behind it base offset, append time, log start offset and the throttle time.
    error_at = 4 + 4 + 4 + len(text(topic)) + 4 + 4
    return Frames(requests, error_at + 2 + 3 * 8 + 4, error_at)


def check(frames: Frames, answer: bytes, partition: int) -> int:
    """The error code of a whole answer."""
    size, correlation_id = struct.unpack_from(">ii", answer)
    if size + 4 != frames.answer_bytes or correlation_id != partition:
        raise BenchError(f"a strange answer to Produce for partition {partition}: {answer.hex()}")
    error: int = struct.unpack_from(">h", answer, frames.error_at)[0]
    return error


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=GIVE_UP_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A timeout would cost a system call for each read; the bench ends a load that hangs.
    connection.settimeout(None)
    return connection


def open_all(bootstrap: str, count: int) -> list[socket.socket]:
    """Connections that the broker knows for a client's: each has asked it something.

    One after the other: more at once than a broker's backlog holds would wait for seconds.
    """
    connections = []
    for _ in range(count):
        connections.append(connect(bootstrap))
        ask_api_versions(connections[-1])
    return connections


def fill_once(connection: socket.socket, frames: Frames) -> None:
    """A batch to every partition; waits for those that are still being made."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    for partition, request in enumerate(frames.requests):
        while error := ask(connection, frames, partition, request):
            if error not in NOT_YET or time.monotonic() > deadline:
                raise BenchError(f"Produce to partition {partition} answered error {error}")
            time.sleep(0.01)


def ask(connection: socket.socket, frames: Frames, partition: int, request: bytes) -> int:
    connection.sendall(request)
    return check(frames, receive(connection, frames.answer_bytes), partition)


class Busy:
    """Connections that each have one request in flight, and go round the partitions."""

    def __init__(self, connections: list[socket.socket], frames: Frames) -> None:
        self._frames = frames
        self._sockets = {connection.fileno(): connection for connection in connections}
        partitions = len(frames.requests)
        # Spread, so that the connections do not walk in step from partition to partition.
        self._partition = {
            fileno: index * partitions // len(connections)
            for index, fileno in enumerate(self._sockets)
        }
        self._poll = select.epoll()
        for fileno in self._sockets:
            self._poll.register(fileno, select.EPOLLIN)

    def run(self, seconds: float) -> float:
        """Answers a second; all answers are in when it returns."""
        for fileno, connection in self._sockets.items():
            connection.send(self._frames.requests[self._partition[fileno]])
        begin = time.perf_counter()
        end = begin + seconds
        answered = 0
        while (now := time.perf_counter()) < end:
            answered += self._answer_ready(go_on=True)
        in_flight = len(self._sockets)
        while in_flight > 0:
            in_flight -= self._answer_ready(go_on=False)
        return answered / (now - begin)

    def _answer_ready(self, *, go_on: bool) -> int:
        """Takes the answers that are there, and sends each connection's next request."""
        ready = self._poll.poll(GIVE_UP_SECONDS)
        if not ready:
            raise BenchError(f"no answer in {GIVE_UP_SECONDS:.0f} s")
        frames, partition_of = self._frames, self._partition
        for fileno, _ in ready:
            connection = self._sockets[fileno]
            answer = connection.recv(frames.answer_bytes)
            if len(answer) < frames.answer_bytes:
                answer += receive(connection, frames.answer_bytes - len(answer))
            partition = partition_of[fileno]
            if error := check(frames, answer, partition):
                raise BenchError(f"Produce to partition {partition} answered error {error}")
            partition = partition_of[fileno] = (partition + 1) % len(frames.requests)
            if go_on:
                # Small against the socket's buffer, and nothing else is in it: never cut short.
                connection.send(frames.requests[partition])
        return len(ready)


def rate(arguments: argparse.Namespace, frames: Frames) -> Numbers:
    connections = open_all(arguments.bootstrap, arguments.connections)
    fill_once(connections[0], frames)
    busy = Busy(connections, frames)
    rates = []
    for count in arguments.idle:
        idle = open_all(arguments.bootstrap, count)
        busy.run(SETTLE_SECONDS)
        rates.append(busy.run(arguments.seconds))
        for connection in idle:
            connection.close()
    return {"rates": rates}


def latency(arguments: argparse.Namespace, frames: Frames) -> Numbers:
    connection = connect(arguments.bootstrap)
    fill_once(connection, frames)
    milliseconds = []
    end = time.perf_counter() + arguments.seconds
    partitions = len(frames.requests)
    count = 0
    while (begin := time.perf_counter()) < end:
        partition = count % partitions
        error = ask(connection, frames, partition, frames.requests[partition])
        milliseconds.append((time.perf_counter() - begin) * 1000)
        if error:
            raise BenchError(f"Produce to partition {partition} answered error {error}")
        count += 1
    return {"milliseconds": milliseconds}


LOADS: Final[dict[str, Callable[[argparse.Namespace, Frames], Numbers]]] = {
    "rate": rate,
    "latency": latency,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Load by a client that costs next to nothing.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True, help="in a batch")
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--idle", type=int, nargs="+", default=[0])
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    frames = make_frames(
        arguments.topic, arguments.partitions, arguments.records, arguments.record_bytes
    )
    try:
        print(json.dumps(LOADS[arguments.load](arguments, frames)))
    except (BenchError, OSError) as error:
        sys.exit(f"{arguments.bootstrap}: {error}")


if __name__ == "__main__":
    main()
