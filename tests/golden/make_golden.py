"""Makes the golden bytes in `data/` anew: real clients write the corpus to a real broker.

    python -m tests.golden.make_golden

One topic of one partition for every cell of the corpus; when the broker has stopped, the segment
of each is copied as it lies on the disk. Besides the development environment this needs a JDK and
the packages python-snappy, lz4 and zstandard, which kafka-python compresses with.
"""

from __future__ import annotations

import asyncio
import base64
import json
import lzma
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaProducer

from tests.golden.corpus import CELLS, DATA, INDEX, Cell, Codec, Mode, Record, Writer
from tools.apache_kafka import ApacheKafka
from tools.java import find_java
from tools.kafka_jars import KAFKA_VERSION, ensure_kafka_jars

# Large enough for every case to fit into one batch, if the client's own limits let it.
BATCH_BYTES: Final = 8_000_000
REQUEST_BYTES: Final = 16_000_000
# Clients whose flush() does not cut the linger short must still gather ten thousand records.
LINGER_MS: Final = 500

BROKER_PROPERTIES: Final = {
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(REQUEST_BYTES),
    "transaction.state.log.num.partitions": "1",
    # The corpus is years old and jumps in time: neither may cost a segment.
    "log.retention.ms": "-1",
    "log.roll.ms": str(2**63 - 1),
}


class GoldenError(RuntimeError):
    """A writer failed, or the broker kept something else than one segment."""


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        jars = ensure_kafka_jars()
        with ApacheKafka(jars, Path(scratch), properties=BROKER_PROPERTIES) as kafka:
            create_topics(kafka.bootstrap)
            by_writer = {w: [cell for cell in CELLS if cell.writer is w] for w in Writer}
            for cell in by_writer[Writer.CONFLUENT]:
                write_confluent(kafka.bootstrap, cell)
            for cell in by_writer[Writer.AIOKAFKA]:
                asyncio.run(write_aiokafka(kafka.bootstrap, cell))
            for cell in by_writer[Writer.KAFKA_PYTHON]:
                write_kafka_python(kafka.bootstrap, cell)
            write_java(kafka.bootstrap, by_writer[Writer.JAVA], jars, Path(scratch))
            await_markers(kafka.bootstrap)
        store(kafka.log_dir)


def create_topics(bootstrap: str) -> None:
    topics = [NewTopic(cell.name, num_partitions=1, replication_factor=1) for cell in CELLS]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(topics).values():
        created.result()


def await_markers(bootstrap: str) -> None:
    """Return when the last transaction of every writer has its marker in the log.

    A coordinator answers EndTxn before it writes the markers, but answers InitProducerId only
    when nothing of the transaction before is left to do.
    """
    for cell in CELLS:
        if cell.case.mode is Mode.TRANSACTIONAL:
            successor = {"bootstrap.servers": bootstrap, "transactional.id": cell.name}
            Producer(successor).init_transactions()


# --- the writers ------------------------------------------------------------------------------


def dotted_config(bootstrap: str, cell: Cell) -> dict[str, str]:
    """The settings that librdkafka and the Java client call by the same names."""
    config = {
        "bootstrap.servers": bootstrap,
        "compression.type": cell.codec.name.lower(),
        "batch.size": str(BATCH_BYTES),
        "linger.ms": str(LINGER_MS),
        "enable.idempotence": str(cell.case.mode is not Mode.PLAIN).lower(),
        "acks": "all",
    }
    if cell.case.mode is Mode.TRANSACTIONAL:
        config["transactional.id"] = cell.name
    return config


def python_config(bootstrap: str, cell: Cell) -> dict[str, Any]:
    """The settings that aiokafka and kafka-python call by the same names."""
    return {
        "bootstrap_servers": bootstrap,
        "compression_type": None if cell.codec is Codec.NONE else cell.codec.name.lower(),
        "max_request_size": REQUEST_BYTES,
        "linger_ms": LINGER_MS,
        "enable_idempotence": cell.case.mode is not Mode.PLAIN,
        "transactional_id": cell.name if cell.case.mode is Mode.TRANSACTIONAL else None,
        "acks": "all",
    }


def header_pairs(record: Record) -> list[tuple[str, str | bytes | None]]:
    """Headers as the Python clients take them: plain tuples and nothing else."""
    return [(header.key, header.value) for header in record.headers]


def write_confluent(bootstrap: str, cell: Cell) -> None:
    config = dotted_config(bootstrap, cell)
    producer = Producer({**config, "message.max.bytes": str(REQUEST_BYTES)})
    failures: list[object] = []

    def send_all(records: list[Record]) -> None:
        for record in records:
            producer.produce(
                cell.name,
                partition=0,
                key=record.key,
                value=record.value,
                timestamp=record.timestamp,
                headers=header_pairs(record),
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        producer.flush()
        if failures:
            raise GoldenError(f"{cell.name}: {failures[0]}")

    if cell.case.mode is not Mode.TRANSACTIONAL:
        send_all(cell.records)
        return
    producer.init_transactions()
    producer.begin_transaction()
    send_all(cell.records)
    producer.commit_transaction()
    producer.begin_transaction()
    send_all(list(cell.case.aborted))
    producer.abort_transaction()


async def write_aiokafka(bootstrap: str, cell: Cell) -> None:
    config = python_config(bootstrap, cell)
    producer = AIOKafkaProducer(**config, max_batch_size=BATCH_BYTES)

    async def send_all(records: list[Record]) -> None:
        sent = [
            await producer.send(
                cell.name,
                partition=0,
                key=record.key,
                value=record.value,
                timestamp_ms=record.timestamp,
                headers=header_pairs(record),
            )
            for record in records
        ]
        await asyncio.gather(*sent)

    async with producer:
        if cell.case.mode is not Mode.TRANSACTIONAL:
            await send_all(cell.records)
            return
        await producer.begin_transaction()
        await send_all(cell.records)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await send_all(list(cell.case.aborted))
        await producer.abort_transaction()


def write_kafka_python(bootstrap: str, cell: Cell) -> None:
    config = python_config(bootstrap, cell)
    producer = KafkaProducer(**config, batch_size=BATCH_BYTES)

    def send_all(records: list[Record]) -> None:
        sent = [
            producer.send(
                cell.name,
                partition=0,
                key=record.key,
                value=record.value,
                timestamp_ms=record.timestamp,
                headers=header_pairs(record),
            )
            for record in records
        ]
        producer.flush()
        for answer in sent:
            answer.get()

    try:
        if cell.case.mode is not Mode.TRANSACTIONAL:
            send_all(cell.records)
            return
        producer.init_transactions()
        producer.begin_transaction()
        send_all(cell.records)
        producer.commit_transaction()
        producer.begin_transaction()
        send_all(list(cell.case.aborted))
        producer.abort_transaction()
    finally:
        producer.close()


def write_java(bootstrap: str, cells: list[Cell], jars: Path, scratch: Path) -> None:
    """All cells in one run: see GoldenWriter.java for the form of a job."""
    jobs = scratch / "jobs.jsonl"
    with jobs.open("w", encoding="utf-8") as lines:
        for cell in cells:
            config = dotted_config(bootstrap, cell)
            job = {
                "topic": cell.name,
                "config": {**config, "max.request.size": str(REQUEST_BYTES)},
                "records": [as_json(record) for record in cell.records],
                "aborted": [as_json(record) for record in cell.case.aborted],
            }
            lines.write(json.dumps(job) + "\n")
    program = Path(__file__).with_name("GoldenWriter.java")
    subprocess.run([str(find_java()), "-cp", f"{jars}/*", str(program), str(jobs)], check=True)


def as_json(record: Record) -> dict[str, object]:
    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    return {
        "key": text(record.key),
        "value": text(record.value),
        "timestamp": record.timestamp,
        "headers": [[header.key, text(header.value)] for header in record.headers],
    }


# --- the store --------------------------------------------------------------------------------


def store(log_dir: Path) -> None:
    """One file for each writer, its segments end to end, and the index that says where each is."""
    DATA.mkdir(exist_ok=True)
    ranges = {}
    for writer in Writer:
        segments = bytearray()
        for cell in CELLS:
            if cell.writer is writer:
                start = len(segments)
                segments += only_segment(log_dir / f"{cell.name}-0")
                ranges[cell.name] = (start, len(segments))
        path = DATA / f"{writer.value}.xz"
        path.write_bytes(lzma.compress(segments, preset=9 | lzma.PRESET_EXTREME))
        print(f"{path.name}: {len(segments)} bytes in {path.stat().st_size}", file=sys.stderr)
    versions = {writer.value: writer_version(writer) for writer in Writer}
    index = {"broker": KAFKA_VERSION, "writers": versions, "segments": ranges}
    INDEX.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def only_segment(partition_dir: Path) -> bytes:
    found = list(partition_dir.glob("*.log"))
    if len(found) != 1:
        raise GoldenError(f"{partition_dir.name} has {len(found)} segments; one was expected")
    return found[0].read_bytes()


def writer_version(writer: Writer) -> str:
    return KAFKA_VERSION if writer is Writer.JAVA else version(writer.value)


if __name__ == "__main__":
    main()
