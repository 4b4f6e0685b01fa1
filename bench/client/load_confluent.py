"""Load by confluent-kafka as most people write it: `produce` record by record, `consume` by many.

    python -m bench.client.load_confluent produce --bootstrap HOST:PORT --topic NAME ...

A process of its own, so that its cost is not the bench's; prints one line of JSON: seconds and the
CPU seconds of this process, librdkafka's threads included. Ends with an error unless every record
was acknowledged, or read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Final

from confluent_kafka import KafkaError, Message

from bench.common.load_librdkafka import LINGER_MS, LoadError, flush, make_producer, read_all

WARM_UP: Final = 10_000

Numbers = dict[str, float]


def produce(arguments: argparse.Namespace) -> Numbers:
    """Seconds from the first record to the last acknowledgement, idempotent."""
    errors: list[KafkaError] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    settings = {
        "enable.idempotence": True,
        "linger.ms": LINGER_MS,
        "delivery.report.only.error": True,
    }
    producer = make_producer(arguments, **settings)
    values = [os.urandom(arguments.record_bytes) for _ in range(100)]

    def send_all(records: int) -> None:
        # Bound once, as whoever wants it fast would.
        send, topic = producer.produce, arguments.topic
        places = cycle(range(arguments.partitions))
        for value, place in islice(zip(cycle(values), places, strict=False), records):
            while True:
                try:
                    send(topic, value, partition=place, on_delivery=note)
                    break
                except BufferError:  # the queue is full
                    producer.poll(0.001)
        flush(producer)

    send_all(WARM_UP)
    wall, cpu = time.perf_counter(), time.process_time()
    send_all(arguments.records)
    numbers = {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }
    if errors:
        raise LoadError(f"{len(errors)} records were not acknowledged, the first: {errors[0]}")
    return numbers


def consume(arguments: argparse.Namespace) -> Numbers:
    """Seconds from the first record that was read to the last, over all passes."""
    cpu = time.process_time()
    seconds = sum(read_all(arguments) for _ in range(arguments.passes))
    return {"seconds": seconds, "cpu_seconds": time.process_time() - cpu}


LOADS: Final[dict[str, Callable[[argparse.Namespace], Numbers]]] = {
    "produce": produce,
    "consume": consume,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Load by confluent-kafka.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--passes", type=int, default=1, help="how often consume reads it all")
    parser.add_argument("--isolation", default="read_committed", help="of consume")
    arguments = parser.parse_args()
    try:
        print(json.dumps(LOADS[arguments.load](arguments)))
    except LoadError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
