"""What our producer writes, the clients of others read; what they write, our readers read: keys,
values, headers, timestamps, partitions and order, whatever the codec, and of transactions only what
was committed. Keys go where Java's client sends them. On every broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest

from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.net.cluster import Cluster
from onceflow.client.producer.partitioner import partition_for_key
from onceflow.client.producer.producer import Producer
from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.settings.consumer import FetcherSettings
from onceflow.client.worker.reader import BlockingReader
from onceflow.records.arrow import HEADERS
from onceflow.types import TopicPartition
from tests.interop.broker.clients.face import Received
from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.client.foreign_clients import (
    java_lines,
    read_aiokafka,
    read_confluent,
    read_kafka_python,
    record_of,
    run_java,
    send_line,
    write_aiokafka,
    write_confluent,
    write_kafka_python,
)
from tests.interop.client.foreign_samples import (
    CODECS,
    FIRST_MS,
    PARTITIONS,
    SECONDS,
    Placed,
    Sample,
    as_received,
    content,
    facts,
    samples,
    transactions,
)
from tests.interop.harness import Compare, Names, Transcript

pytestmark = pytest.mark.interop

OF_KAFKA_PYTHON: Final = ("none", "gzip")
"""For the other codecs it needs packages besides."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def lasting_topic(names: Names, label: str) -> str:
    """One that keeps records however old they say they are."""
    return ready_topic(names, label, partitions=PARTITIONS, configs={"retention.ms": "-1"})


# --- our producer -------------------------------------------------------------------------------


async def send_ours(producer: Producer, topic: str, part: list[Sample]) -> Placed:
    receipts = [
        await producer.send(
            topic,
            each.value,
            key=each.key,
            partition=each.partition,
            timestamp_ms=each.timestamp_ms,
            headers=each.headers,
        )
        for each in part
    ]
    await producer.flush()
    deliveries = [await receipt for receipt in receipts]
    return [
        (each, delivery.partition, delivery.offset)
        for each, delivery in zip(part, deliveries, strict=True)
    ]


async def send_our_table(producer: Producer, topic: str, part: list[Sample]) -> None:
    headers = [[{"key": name, "value": value} for name, value in each.headers] for each in part]
    table = pa.table(
        {
            "key": pa.array([each.key for each in part], pa.binary()),
            "value": pa.array([each.value for each in part], pa.binary()),
            "timestamp": pa.array([each.timestamp_ms for each in part], pa.int64()),
            "partition": pa.array([each.partition for each in part], pa.int32()),
            "headers": pa.array(headers, HEADERS),
        }
    )
    placed = await (await producer.send_table(topic, table))
    assert sum(each.rows for each in placed) == len(part)


async def write_ours(names: Names, topic: str, codec: str) -> tuple[Placed, list[Sample]]:
    """What was sent one by one; and what was sent behind it as tables."""
    common = {"bootstrap.servers": names.bootstrap, "compression.type": codec}
    async with Producer(settings=common) as producer:
        sent = await send_ours(producer, topic, samples(f"{codec} idempotent"))
    tables: list[Sample] = []
    async with Producer(settings=common, transactional_id=names(codec)) as producer:
        await producer.init_transactions()
        for commit, part in transactions(f"{codec} transactional"):
            await producer.begin_transaction()
            found = await send_ours(producer, topic, part)
            sent += found if commit else []
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        for commit, part in transactions(f"{codec} table"):
            await producer.begin_transaction()
            await send_our_table(producer, topic, part)
            tables += part if commit else []
            await (producer.commit_transaction() if commit else producer.abort_transaction())
    return sent, tables


# --- our readers --------------------------------------------------------------------------------


def of_row(row: Mapping[str, Any]) -> Received:
    """A row of Arrow's columns."""
    headers = tuple((each["key"], each["value"]) for each in row["headers"])
    stamp = (row["timestamp"] - EPOCH) // timedelta(milliseconds=1)
    return Received(row["partition"], row["offset"], row["key"], row["value"], headers, stamp)


async def fetch_ours(bootstrap: str, topic: str, count: int) -> tuple[list[Received], ...]:
    """By record, and by column."""
    settings = FetcherSettings.of(bootstrap_servers=bootstrap)
    starts = {TopicPartition(topic, number): 0 for number in range(PARTITIONS)}
    records: list[Received] = []
    rows: list[Received] = []
    async with (
        asyncio.timeout(SECONDS),
        Cluster(settings.bootstrap_servers, settings.cluster()) as cluster,
        Fetcher(cluster, settings) as fetcher,
    ):
        fetcher.assign(starts)
        while len(records) < count:
            for each in await fetcher.next_records(1.0):
                place = (each.partition, each.offset)
                records.append(Received(*place, each.key, each.value, each.headers, each.timestamp))
        fetcher.assign(starts)
        while len(rows) < count:
            table = await fetcher.next_table(1.0)
            if table is not None:
                rows += map(of_row, table.to_pylist())
    return records, rows


def read_ours(bootstrap: str, topic: str) -> list[Received]:
    """Blocking, range by range."""
    found: list[Received] = []
    with BlockingReader(ReaderSettings.of(bootstrap_servers=bootstrap)) as reader:
        for number in range(PARTITIONS):
            for batch in reader.read(topic, number, *reader.ends(topic, number)):
                found += map(of_row, batch.to_pylist())
    return found


# --- one writes, the others read ----------------------------------------------------------------


class Ours(NamedTuple):
    """What our producer wrote with one codec: one by one, and behind it as tables."""

    topic: str
    sent: Placed
    tables: list[Sample]

    @property
    def total(self) -> int:
        return len(self.sent) + len(self.tables)

    @property
    def keys(self) -> set[bytes]:
        """Those that have chosen a partition."""
        all_ = (*(each for each, *_ in self.sent), *self.tables)
        return {each.key or b"" for each in all_ if each.partition is None}

    def content(self, chosen: Mapping[bytes, int]) -> dict[int, list[Any]]:
        """What a reader must see; `chosen` says where Java sends keys."""
        for each, partition, _ in self.sent:
            if each.partition is None:
                assert chosen[each.key or b""] == partition, each.key
        expected = content(as_received(self.sent))
        for each in self.tables:
            number = chosen[each.key or b""] if each.partition is None else each.partition
            expected[number].append(facts(each))
        return expected


def write_all_of_ours(names: Names) -> dict[str, Ours]:
    topics = {codec: lasting_topic(names, codec) for codec in CODECS}
    return {
        codec: Ours(topic, *asyncio.run(write_ours(names, topic, codec)))
        for codec, topic in topics.items()
    }


class Java(NamedTuple):
    """What Java's client read of ours, what it wrote, and where it sends keys."""

    read: list[Received]
    topic: str
    wrote: Placed
    chosen: dict[bytes, int]


def ask_java(names: Names, ours: Mapping[str, Ours]) -> Java:
    """All at once: a start of Java takes longer than its work."""
    by_key = lasting_topic(names, "by-key")
    topic = lasting_topic(names, "java")
    keys = sorted(set().union(*(each.keys for each in ours.values())))
    lines = ["producer\tnone\t-"]
    lines += [send_line(by_key, Sample(key, b"", (), FIRST_MS, None)) for key in keys]
    sent: list[tuple[bool, Sample]] = []
    for codec in CODECS:
        more, records = java_lines(names, topic, codec)
        lines += more
        sent += records
    lines += [f"read\t{each.topic}\t{each.total}" for each in ours.values()]
    answers = run_java(names.bootstrap, lines)
    places = [(int(words[1]), int(words[2])) for words in answers if words[0] == "sent"]
    return Java(
        read=[record_of(words[1:]) for words in answers if words[0] == "record"],
        topic=topic,
        wrote=[
            (each, *place)
            for (is_seen, each), place in zip(sent, places[len(keys) :], strict=True)
            if is_seen
        ],
        chosen={key: place[0] for key, place in zip(keys, places, strict=False)},
    )


def readings(bootstrap: str, ours: Ours, codec: str) -> Iterator[tuple[str, list[Received]]]:
    """What each client of Python reads."""
    topic, count = ours.topic, ours.total
    yield "confluent-kafka", read_confluent(bootstrap, topic, count)
    yield "aiokafka", read_aiokafka(bootstrap, topic, count)
    if codec in OF_KAFKA_PYTHON:
        yield "kafka-python", read_kafka_python(bootstrap, topic, count)


def check_ours(
    bootstrap: str, ours: Mapping[str, Ours], java: Java, transcript: Transcript
) -> None:
    by_java = iter(java.read)
    for codec, mine in ours.items():
        expected = mine.content(java.chosen)
        assert content(islice(by_java, mine.total)) == expected, f"{codec}, Java"
        for name, found in readings(bootstrap, mine, codec):
            assert content(found) == expected, f"{codec}, {name}"
        transcript.note(codec, {number: len(rows) for number, rows in sorted(expected.items())})
    assert next(by_java, None) is None


def check_theirs(bootstrap: str, client: str, topic: str, wrote: Placed) -> list[Any]:
    """Our readers see it all, with its offsets; the partitions of it. Offsets are one broker's own:
    Apache Kafka may write a transaction's marker behind what another producer sends after it."""
    for each, partition, _ in wrote:
        if each.partition is None:
            assert partition_for_key(each.key or b"", PARTITIONS) == partition, client
    expected = as_received(wrote)
    records, rows = asyncio.run(fetch_ours(bootstrap, topic, len(expected)))
    for found in (records, rows, read_ours(bootstrap, topic)):
        assert sorted(found, key=lambda each: each[:2]) == expected, client
    return [each.partition for each in expected]


def everybody(bootstrap: str, names: Names, transcript: Transcript) -> None:
    ours = write_all_of_ours(names)
    java = ask_java(names, ours)
    check_ours(bootstrap, ours, java, transcript)
    transcript.note("java", check_theirs(bootstrap, "java", java.topic, java.wrote))
    for client, write, codecs in (
        ("confluent-kafka", write_confluent, CODECS),
        ("aiokafka", write_aiokafka, CODECS),
        ("kafka-python", write_kafka_python, OF_KAFKA_PYTHON),
    ):
        topic = lasting_topic(names, client)
        wrote = [each for codec in codecs for each in write(names, topic, codec)]
        transcript.note(client, check_theirs(bootstrap, client, topic, wrote))


def test_records_mean_the_same_to_everybody(compare: Compare, kafka_jars: Path) -> None:
    assert kafka_jars.is_dir()
    compare(everybody)
