"""Transactional ids in great number, over a bare socket: frames by hand, so that the client costs
next to nothing.

    python -m bench.transactions.load_ids hold --bootstrap HOST:PORT --topic NAME --ids 10000 ...
    python -m bench.transactions.load_ids fresh --bootstrap HOST:PORT --topic NAME --ids 500

A process of its own, so that its cost is not the bench's; prints one line of JSON. Every answer is
checked for its error code.
- `hold`: makes the broker know so many ids, and leaves so many of their transactions open.
- `fresh`: milliseconds of a whole transaction of a new id: InitProducerId, AddPartitionsToTxn,
  Produce of one record, EndTxn.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bench.broker.load_raw import ACKS_ALL, GIVE_UP_SECONDS, connect, text
from bench.common.targets import BenchError, receive
from onceflow.records.plain import PlainRecord, write_records

AT_ONCE: Final = 50
TIMEOUT_MS: Final = 900_000
"""The longest that brokers allow by default: nothing times out while the bench runs."""
PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 0, 22, 24, 26
VERSIONS: Final = {PRODUCE: 7, INIT_PRODUCER_ID: 1, ADD_PARTITIONS_TO_TXN: 1, END_TXN: 1}
"""The last ones before lengths became compact, or older."""

Numbers = dict[str, float | list[float]]


class Producer(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int

    def fields(self) -> bytes:
        return text(self.transactional_id) + struct.pack(">qh", self.producer_id, self.epoch)


class Broker:
    """One connection. Answers come in the order of the requests."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def ask(self, api_key: int, bodies: Sequence[bytes]) -> list[bytes]:
        """All requests in one write, then all answers, each behind its correlation id."""
        frames = []
        for body in bodies:
            head = struct.pack(">hhi", api_key, VERSIONS[api_key], 0) + text("bench")
            frames.append(struct.pack(">i", len(head) + len(body)) + head + body)
        self._connection.sendall(b"".join(frames))
        return [self._answer() for _ in bodies]

    def _answer(self) -> bytes:
        (size,) = struct.unpack(">i", receive(self._connection, 4))
        return receive(self._connection, size)[4:]


def check(api: str, error: int) -> None:
    if error:
        raise BenchError(f"{api} answered error {error}")


def init(broker: Broker, ids: Sequence[str]) -> list[Producer]:
    bodies = [text(each) + struct.pack(">i", TIMEOUT_MS) for each in ids]
    producers = []
    for each, answer in zip(ids, broker.ask(INIT_PRODUCER_ID, bodies), strict=True):
        _, error, producer_id, epoch = struct.unpack(">ihqh", answer)
        check("InitProducerId", error)
        producers.append(Producer(each, producer_id, epoch))
    return producers


def add(broker: Broker, producers: Sequence[Producer], topic: str) -> None:
    place = struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, 0)
    for answer in broker.ask(ADD_PARTITIONS_TO_TXN, [each.fields() + place for each in producers]):
        check("AddPartitionsToTxn", struct.unpack_from(">h", answer, len(answer) - 2)[0])


def produce(broker: Broker, producer: Producer, topic: str, value: bytes) -> None:
    batch = write_records(
        [PlainRecord(None, value)],
        int(time.time() * 1000),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        transactional=True,
    ).buffer
    body = text(producer.transactional_id) + struct.pack(">hii", ACKS_ALL, TIMEOUT_MS, 1)
    body += text(topic) + struct.pack(">iii", 1, 0, len(batch)) + batch
    (answer,) = broker.ask(PRODUCE, [body])
    # One topic, its name, one partition, its number: then the error code.
    check("Produce", struct.unpack_from(">h", answer, 4 + len(text(topic)) + 4 + 4)[0])


def commit(broker: Broker, producer: Producer) -> None:
    (answer,) = broker.ask(END_TXN, [producer.fields() + b"\x01"])
    check("EndTxn", struct.unpack_from(">h", answer, 4)[0])


def names(count: int) -> list[str]:
    start = time.monotonic_ns()
    return [f"bench-{os.getpid()}-{start}-{number}" for number in range(count)]


def hold(arguments: argparse.Namespace, broker: Broker) -> Numbers:
    ids = names(arguments.ids)
    producers: list[Producer] = []
    for first in range(0, len(ids), AT_ONCE):
        producers += init(broker, ids[first : first + AT_ONCE])
    for first in range(0, arguments.open, AT_ONCE):
        add(broker, producers[first : min(first + AT_ONCE, arguments.open)], arguments.topic)
    return {"ids": float(len(producers))}


def fresh(arguments: argparse.Namespace, broker: Broker) -> Numbers:
    milliseconds = []
    value = os.urandom(100)
    for transactional_id in names(arguments.ids):
        begin = time.perf_counter()
        (producer,) = init(broker, [transactional_id])
        add(broker, [producer], arguments.topic)
        produce(broker, producer, arguments.topic, value)
        commit(broker, producer)
        milliseconds.append((time.perf_counter() - begin) * 1000)
    return {"milliseconds": milliseconds}


LOADS: Final[dict[str, Callable[[argparse.Namespace, Broker], Numbers]]] = {
    "hold": hold,
    "fresh": fresh,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Load by many transactional ids.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--ids", type=int, required=True)
    parser.add_argument("--open", type=int, default=0)
    arguments = parser.parse_args()
    try:
        with connect(arguments.bootstrap) as connection:
            connection.settimeout(GIVE_UP_SECONDS)
            print(json.dumps(LOADS[arguments.load](arguments, Broker(connection))))
    except (BenchError, OSError) as error:
        sys.exit(f"{arguments.bootstrap}: {error}")


if __name__ == "__main__":
    main()
