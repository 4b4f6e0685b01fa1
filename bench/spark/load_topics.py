"""Topics of the Spark bench, filled and counted by confluent-kafka.

    python -m bench.spark.load_topics fill --bootstrap HOST:PORT --topic NAME ...

Prints one line of JSON. Keys are the numbers of the records, in eight bytes, and every record is
where Kafka's own hash of its key belongs.
- `fill`: writes so many records, whose values are text with lower-case letters.
- `count`: reads all that is committed, and ends with an error unless every number is there, once,
  and the letters of all values are of the case that they should be of.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import cycle
from secrets import token_hex
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bench.common.load_librdkafka import (
    AT_ONCE,
    GIVE_UP_SECONDS,
    LINGER_MS,
    LoadError,
    flush,
    make_producer,
)

KEY_BYTES: Final = 8
DIFFERENT_VALUES: Final = 100
WAIT_SECONDS: Final = 0.1
CASES: Final = {"lower": bytes.islower, "upper": bytes.isupper}

Numbers = dict[str, int]


def fill(arguments: argparse.Namespace) -> Numbers:
    errors: list[KafkaError] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = make_producer(
        arguments,
        **{
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
        },
    )
    values = cycle(
        [token_hex(arguments.record_bytes // 2).encode() for _ in range(DIFFERENT_VALUES)]
    )
    for number, value in zip(range(arguments.records), values, strict=False):
        key = number.to_bytes(KEY_BYTES, "big")
        while True:
            try:
                producer.produce(arguments.topic, value, key, on_delivery=note)
                break
            except BufferError:  # the queue is full
                producer.poll(0.001)
    flush(producer)
    if errors:
        raise LoadError(f"{len(errors)} records were not acknowledged, the first: {errors[0]}")
    return {"records": arguments.records}


def count(arguments: argparse.Namespace) -> Numbers:
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            # Else librdkafka stops to fetch for a second at a time when its queue is full.
            "queued.min.messages": 10_000_000,
            "queued.max.messages.kbytes": 2_097_151,
        }
    )
    left = set(range(arguments.partitions))
    consumer.assign([TopicPartition(arguments.topic, number, 0) for number in left])
    is_right = CASES[arguments.letters]
    records, changed, keys = 0, 0, set[bytes | None]()
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while left:
        # It waits until there are so many, or time is up.
        messages = consumer.consume(AT_ONCE, timeout=WAIT_SECONDS)
        if messages:
            deadline = time.monotonic() + GIVE_UP_SECONDS
        elif time.monotonic() > deadline:
            raise LoadError(f"nothing to read for {GIVE_UP_SECONDS:.0f} s")
        for message in messages:
            if (error := message.error()) is None:
                keys.add(message.key())
                records += 1
                changed += not is_right(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition() or 0)
            else:
                raise LoadError(f"cannot read: {error}")
    consumer.close()
    if not records == len(keys) == arguments.records:
        raise LoadError(
            f"{arguments.topic} has {records} records of {len(keys)} different keys, "
            f"and should have {arguments.records}"
        )
    if changed:
        raise LoadError(f"{arguments.topic} has {changed} values not in {arguments.letters} case")
    return {"records": records}


LOADS: Final[dict[str, Callable[[argparse.Namespace], Numbers]]] = {"fill": fill, "count": count}


def main() -> None:
    parser = argparse.ArgumentParser(description="Fills and counts topics.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--letters", choices=CASES, default="lower")
    arguments = parser.parse_args()
    try:
        print(json.dumps(LOADS[arguments.load](arguments)))
    except (LoadError, KafkaException) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
