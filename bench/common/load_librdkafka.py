"""Load by librdkafka, through confluent-kafka: produce, consume, one record at a time.

    python -m bench.common.load_librdkafka produce --bootstrap HOST:PORT --topic NAME ...

A process of its own, so that its cost is not the bench's; prints one line of JSON. Connections are
open and metadata is known before the clock starts. Ends with an error unless every record was
acknowledged, or read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

LINGER_MS: Final = 5
IN_FLIGHT: Final = 5
AT_ONCE: Final = 10_000
QUEUE_RECORDS: Final = 100_000
"""librdkafka's default for queue.buffering.max.messages."""
GIVE_UP_SECONDS: Final = 60.0

Numbers = dict[str, float | list[float]]


class LoadError(RuntimeError):
    """The broker did not take or give what was asked of it."""


def make_producer(arguments: argparse.Namespace, **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "acks": "all",
            "enable.idempotence": False,
            "max.in.flight.requests.per.connection": IN_FLIGHT,
            "message.timeout.ms": int(GIVE_UP_SECONDS * 1000),
            **settings,
        }
    )


def produce(arguments: argparse.Namespace) -> Numbers:
    """Seconds from the first record to the last acknowledgement."""
    errors: list[KafkaError] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    batch = {"batch.size": arguments.batch_bytes} if arguments.batch_bytes else {}
    producer = make_producer(
        arguments, **{"linger.ms": LINGER_MS, "delivery.report.only.error": True}, **batch
    )
    partitions = arguments.partitions
    values = [os.urandom(arguments.record_bytes) for _ in range(partitions)]
    for partition in range(partitions):
        producer.produce(arguments.topic, values[0], partition=partition, on_delivery=note)
    flush(producer)
    messages = [
        {"value": values[index % partitions], "partition": index % partitions}
        for index in range(AT_ONCE)
    ]
    begin = time.perf_counter()
    for first in range(0, arguments.records, AT_ONCE):
        part = messages[: min(AT_ONCE, arguments.records - first)]
        wait_for_room(producer, len(part))
        if producer.produce_batch(arguments.topic, part, on_delivery=note) != len(part):
            raise LoadError("librdkafka did not take a record although it had room")
    flush(producer)
    seconds = time.perf_counter() - begin
    if errors:
        raise LoadError(f"{len(errors)} records were not acknowledged, the first: {errors[0]}")
    return {"seconds": seconds}


def wait_for_room(producer: Producer, records: int, most: int = QUEUE_RECORDS) -> None:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while len(producer) + records > most:
        if time.monotonic() > deadline:
            raise LoadError(f"no room after {GIVE_UP_SECONDS:.0f} s: {len(producer)} are waiting")
        producer.poll(0.001)


def flush(producer: Producer) -> None:
    if (left := producer.flush(GIVE_UP_SECONDS)) != 0:
        raise LoadError(f"{left} records are not acknowledged after {GIVE_UP_SECONDS:.0f} s")


def consume(arguments: argparse.Namespace) -> Numbers:
    """Seconds from the first record that was read to the last, over all passes."""
    return {"seconds": sum(read_all(arguments) for _ in range(arguments.passes))}


def read_all(arguments: argparse.Namespace) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": arguments.isolation,
            # Else librdkafka stops to fetch for a second at a time when its queue is full.
            "queued.min.messages": 10_000_000,
            "queued.max.messages.kbytes": 2_097_151,
        }
    )
    consumer.assign(
        [TopicPartition(arguments.topic, number, 0) for number in range(arguments.partitions)]
    )
    read_some(consumer, 1)
    begin = time.perf_counter()
    left = arguments.records - 1
    while left > 0:
        left -= read_some(consumer, min(left, AT_ONCE))
    seconds = time.perf_counter() - begin
    consumer.close()
    return seconds


def read_some(consumer: Consumer, most: int) -> int:
    messages = consumer.consume(most, timeout=GIVE_UP_SECONDS)
    if not messages:
        raise LoadError(f"nothing to read for {GIVE_UP_SECONDS:.0f} s")
    for message in (messages[0], messages[-1]):
        if message.error() is not None:
            raise LoadError(f"cannot read: {message.error()}")
    return len(messages)


def latency(arguments: argparse.Namespace) -> Numbers:
    """Milliseconds from produce to acknowledgement, one record at a time."""
    answers: list[KafkaError | None] = []
    producer = make_producer(arguments, **{"linger.ms": 0})
    value = os.urandom(arguments.record_bytes)
    milliseconds: list[float] = []
    for number in range(arguments.records):
        begin = time.perf_counter()
        producer.produce(
            arguments.topic,
            value,
            partition=number % arguments.partitions,
            on_delivery=lambda error, _message: answers.append(error),
        )
        while not answers:
            producer.poll(1.0)
        milliseconds.append((time.perf_counter() - begin) * 1000)
        if (error := answers.pop()) is not None:
            raise LoadError(f"a record was not acknowledged: {error}")
    # The first ones wait for connections and metadata.
    return {"milliseconds": milliseconds[len(milliseconds) // 10 :]}


LOADS: Final[dict[str, Callable[[argparse.Namespace], Numbers]]] = {
    "produce": produce,
    "consume": consume,
    "latency": latency,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Load by librdkafka.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--passes", type=int, default=1, help="how often consume reads it all")
    parser.add_argument("--isolation", default="read_committed", help="of consume")
    parser.add_argument("--batch-bytes", type=int, default=0, help="0: librdkafka's own default")
    arguments = parser.parse_args()
    try:
        print(json.dumps(LOADS[arguments.load](arguments)))
    except LoadError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
