"""Writers and readers that others made: each writes samples, in transactions too, and says where
they are; each reads what was committed."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition as AiokafkaPartition

from tests.interop.broker.clients import client_kafka_python as kp
from tests.interop.broker.clients.client_confluent import received
from tests.interop.broker.clients.face import Received, all_received
from tests.interop.client.foreign_samples import (
    PARTITIONS,
    SECONDS,
    Placed,
    Sample,
    samples,
    transactions,
)
from tests.interop.harness import Names
from tools.java import find_java
from tools.kafka_jars import classpath_of_newest_client

PROGRAM: Final = Path(__file__).with_name("Records.java")
# It lives for a few seconds: code that is compiled fast beats code that runs fast.
JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")
JVM_SECONDS: Final = 180.0


# --- Python -------------------------------------------------------------------------------------


def read_confluent(bootstrap: str, topic: str, count: int) -> list[Received]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, n, start) for n in range(PARTITIONS)])
    found: list[Received] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), SECONDS / 4)
        assert messages, f"{len(found)} of {count} records came"
        found += map(received, messages)
    consumer.close()
    return found


def write_confluent(names: Names, topic: str, codec: str) -> Placed:
    placed: Placed = []
    common = {
        "bootstrap.servers": names.bootstrap,
        "compression.type": codec,
        "partitioner": "murmur2_random",
        "log_level": 0,
    }

    def send(producer: Any, part: list[Sample]) -> Placed:
        reports: dict[int, Any] = {}
        for number, each in enumerate(part):
            producer.produce(
                topic,
                each.value,
                each.key,
                -1 if each.partition is None else each.partition,
                on_delivery=lambda error, message, number=number: reports.update(
                    {number: (error, message.partition(), message.offset())}
                ),
                timestamp=each.timestamp_ms,
                headers=list(each.headers),
            )
        assert producer.flush(SECONDS) == 0
        assert not any(error for error, *_ in reports.values())
        return [(each, *reports[number][1:]) for number, each in enumerate(part)]

    placed += send(confluent_kafka.Producer(common), samples(codec))
    producer = confluent_kafka.Producer({**common, "transactional.id": names(f"confluent {codec}")})
    producer.init_transactions(SECONDS)
    for commit, part in transactions(codec):
        producer.begin_transaction()
        found = send(producer, part)
        placed += found if commit else []
        (producer.commit_transaction if commit else producer.abort_transaction)(SECONDS)
    return placed


def read_aiokafka(bootstrap: str, topic: str, count: int) -> list[Received]:
    return asyncio.run(_read_aiokafka(bootstrap, topic, count))


async def _read_aiokafka(bootstrap: str, topic: str, count: int) -> list[Received]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
    )
    consumer.assign([AiokafkaPartition(topic, number) for number in range(PARTITIONS)])
    found: list[Received] = []
    await consumer.start()
    try:
        async with asyncio.timeout(SECONDS):
            while len(found) < count:
                found += all_received(await consumer.getmany(timeout_ms=500))
    finally:
        await consumer.stop()
    return found


def write_aiokafka(names: Names, topic: str, codec: str) -> Placed:
    return asyncio.run(_write_aiokafka(names, topic, codec))


async def _write_aiokafka(names: Names, topic: str, codec: str) -> Placed:
    async def send(producer: AIOKafkaProducer, part: list[Sample]) -> Placed:
        futures = [
            await producer.send(
                topic,
                each.value,
                each.key,
                each.partition,
                each.timestamp_ms,
                headers=list(each.headers),
            )
            for each in part
        ]
        found = [await future for future in futures]
        return [(each, at.partition, at.offset) for each, at in zip(part, found, strict=True)]

    common = {
        "bootstrap_servers": names.bootstrap,
        "compression_type": None if codec == "none" else codec,
    }
    async with AIOKafkaProducer(**common) as producer:
        placed = await send(producer, samples(codec))
    name = names(f"aiokafka {codec}")
    async with AIOKafkaProducer(**common, transactional_id=name) as producer:
        for commit, part in transactions(codec):
            await producer.begin_transaction()
            found = await send(producer, part)
            placed += found if commit else []
            await (producer.commit_transaction() if commit else producer.abort_transaction())
    return placed


def read_kafka_python(bootstrap: str, topic: str, count: int) -> list[Received]:
    consumer = kp.KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
    )
    consumer.assign([kp.TopicPartition(topic, number) for number in range(PARTITIONS)])
    found: list[Received] = []
    while len(found) < count:
        batches = consumer.poll(timeout_ms=int(SECONDS * 250))
        assert batches, f"{len(found)} of {count} records came"
        found += all_received(batches)
    consumer.close(autocommit=False)
    return found


def write_kafka_python(names: Names, topic: str, codec: str) -> Placed:
    def send(producer: Any, part: list[Sample]) -> Placed:
        futures = [
            producer.send(
                topic,
                value=each.value,
                key=each.key,
                headers=list(each.headers),
                partition=each.partition,
                timestamp_ms=each.timestamp_ms,
            )
            for each in part
        ]
        producer.flush(SECONDS)
        found = [future.get(SECONDS) for future in futures]
        return [(each, at.partition, at.offset) for each, at in zip(part, found, strict=True)]

    common = {
        "bootstrap_servers": names.bootstrap,
        "compression_type": None if codec == "none" else codec,
        "linger_ms": 5,
    }
    producer = kp.KafkaProducer(**common)
    placed = send(producer, samples(codec, null_headers=False))
    producer.close(SECONDS)
    producer = kp.KafkaProducer(**common, transactional_id=names(f"kafka-python {codec}"))
    producer.init_transactions()
    for commit, part in transactions(codec, null_headers=False):
        producer.begin_transaction()
        found = send(producer, part)
        placed += found if commit else []
        (producer.commit_transaction if commit else producer.abort_transaction)()
    producer.close(SECONDS)
    return placed


# --- Java ---------------------------------------------------------------------------------------


def word(data: bytes | None) -> str:
    return "-" if data is None else "x" + data.hex()


def unword(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text[1:])


def send_line(topic: str, sample: Sample) -> str:
    partition = "-" if sample.partition is None else str(sample.partition)
    words = ["send", topic, partition, str(sample.timestamp_ms)]
    words += [word(sample.key), word(sample.value)]
    for name, value in sample.headers:
        words += [word(name.encode()), word(value)]
    return "\t".join(words)


def java_lines(names: Names, topic: str, codec: str) -> tuple[list[str], list[tuple[bool, Sample]]]:
    """Commands, and for each record that is sent whether it will be seen."""
    sent = [(True, each) for each in samples(codec)]
    lines = [f"producer\t{codec}\t-", *(send_line(topic, each) for _, each in sent)]
    lines.append(f"producer\t{codec}\t{names(f'java {codec}')}")
    for commit, part in transactions(codec):
        lines += ["begin", *(send_line(topic, each) for each in part)]
        lines.append("commit" if commit else "abort")
        sent += [(commit, each) for each in part]
    return lines, sent


def run_java(bootstrap: str, lines: Sequence[str]) -> list[list[str]]:
    """What the program answers, word by word."""
    classpath = classpath_of_newest_client()
    done = subprocess.run(
        [str(find_java()), *JVM_OPTIONS, "-cp", classpath, str(PROGRAM), bootstrap],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=JVM_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def record_of(words: list[str]) -> Received:
    partition, offset, stamp, key, value, *headers = words
    pairs = tuple(
        ((unword(name) or b"").decode(), unword(text))
        for name, text in zip(headers[::2], headers[1::2], strict=True)
    )
    return Received(int(partition), int(offset), unword(key), unword(value), pairs, int(stamp))
