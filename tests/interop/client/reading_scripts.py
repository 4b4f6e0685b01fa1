"""What is asked of our fetcher and our admin on each broker: the scripts themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.admin.transactions import TransactionNotFound
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.consumer.ranges import read_range
from onceflow.client.errors.consumer import OffsetOutOfRange
from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.settings.consumer import FetcherSettings
from onceflow.client.types import EARLIEST, LATEST, PartitionTransaction
from onceflow.types import TopicPartition
from tests.interop.harness import Names, Transcript

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


RECORDS = 2000


Script = Callable[[Admin, Names, Transcript], Awaitable[None]]


def on_a_loop(work: Script, bootstrap: str, names: Names, transcript: Transcript) -> None:
    async def main() -> None:
        async with Admin(bootstrap) as admin:
            await work(admin, names, transcript)

    asyncio.run(main())


def script(work: Script) -> Any:
    """As the fixture wants it: named, and blocking."""
    made = partial(on_a_loop, work)
    made.__name__ = work.__name__  # type: ignore[attr-defined]  # a partial takes any attribute
    return made


async def read(
    admin: Admin, positions: dict[TopicPartition, int | None], *, until: int, **settings: Any
) -> list[dict[str, Any]]:
    """Rows of tables, until there are so many."""
    rows: list[dict[str, Any]] = []
    async with Fetcher(admin.cluster, FetcherSettings.of(**settings)) as fetcher:
        fetcher.assign(positions)
        async with asyncio.timeout(30):
            while len(rows) < until:
                table = await fetcher.next_table(1.0)
                if table is not None:
                    rows += table.to_pylist()
    return rows


async def many_codecs(admin: Admin, names: Names, transcript: Transcript) -> None:
    topic = names("codecs")
    await admin.create_topic(topic, partitions=2)
    for number, codec in enumerate(CODECS):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": names.bootstrap,
                "linger.ms": 20,
                "enable.idempotence": True,  # else it may reorder
                "compression.type": codec,
            }
        )
        for record in range(RECORDS):
            producer.produce(
                topic,
                key=b"%d" % record,
                value=None if record % 10 == 0 else b"%s %d" % (codec.encode(), record),
                partition=record % 2,
                timestamp=1_700_000_000_000 + number,
                headers=[("codec", codec.encode()), ("none", None)] if record % 3 == 0 else [],
            )
        assert producer.flush(30) == 0
    starts: dict[TopicPartition, int | None] = dict.fromkeys(
        (TopicPartition(topic, number) for number in range(2)), None
    )
    rows = await read(admin, starts, until=RECORDS * len(CODECS), auto_offset_reset="earliest")
    for partition in (0, 1):
        mine = [row for row in rows if row["partition"] == partition]
        assert [row["offset"] for row in mine] == list(range(len(mine)))
        transcript.note(f"partition {partition}", [names.hide(str(row)) for row in mine[::97]])
    assert {row["timestamp_type"] for row in rows} == {0}


def producer_of(names: Names, label: str) -> Any:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": names.bootstrap,
            "transactional.id": names(label),
            "linger.ms": 0,
        }
    )


def write(producer: Any, topic: str, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)


async def transactions(admin: Admin, names: Names, transcript: Transcript) -> None:
    topic = names("isolated")
    place = TopicPartition(topic, 0)
    await admin.create_topic(topic, partitions=1)
    one, other = producer_of(names, "one"), producer_of(names, "other")
    for producer in (one, other):
        producer.init_transactions(30)
    # Interleaved, so that aborted records lie between committed ones.
    for commit in (True, False, True):
        one.begin_transaction()
        other.begin_transaction()
        write(one, topic, b"one", b"one")
        write(other, topic, b"other")
        write(one, topic, b"one again")
        (other.abort_transaction if commit else other.commit_transaction)(30)
        (one.commit_transaction if commit else one.abort_transaction)(30)
    one.begin_transaction()
    write(one, topic, b"open")

    committed = await read(admin, {place: 0}, until=7)
    transcript.note("committed", [(row["offset"], row["value"]) for row in committed])
    everything = await read(admin, {place: 0}, until=13, isolation_level="read_uncommitted")
    transcript.note("all", [(row["offset"], row["value"]) for row in everything])
    ends = await admin.list_offsets({place: LATEST}, read_committed=True)
    transcript.note("stable", ends[place].offset)
    for start in (0, 3, 7):
        found: list[Any] = []
        async for table in read_range(admin.cluster, place, start, ends[place].offset):
            found += table.column("offset").to_pylist()
        transcript.note(f"range from {start}", found)
        assert found == [row["offset"] for row in committed if row["offset"] >= start]
    uncommitted = ReaderSettings.of(isolation_level="read_uncommitted")
    with pytest.raises(OffsetOutOfRange) as told:
        async for _ in read_range(admin.cluster, place, 500, 501, settings=uncommitted):
            pass
    transcript.note("out of range", names.hide(str(told.value)))
    one.commit_transaction(30)


async def operators(admin: Admin, names: Names, transcript: Transcript) -> None:
    topic = names("watched")
    place = TopicPartition(topic, 0)
    await admin.create_topic(topic, partitions=1)
    idle, busy = producer_of(names, "idle"), producer_of(names, "busy")
    idle.init_transactions(30)
    busy.init_transactions(30)
    listed = {each.transactional_id: each for each in await admin.list_transactions()}
    transcript.note("idle", listed[names("idle")].state)
    described = await admin.describe_transaction(names("idle"))
    transcript.note(
        "not begun", (described.state, described.start_ms, sorted(described.partitions))
    )
    busy.begin_transaction()
    write(busy, topic, b"a", b"b")
    described = await admin.describe_transaction(names("busy"))
    assert described.partitions == {place}
    assert described.start_ms is not None
    transcript.note("begun", (described.state, described.producer_epoch, described.timeout_ms))
    mine = await admin.list_transactions(states=["Ongoing"], producer_ids=[described.producer_id])
    assert [each.transactional_id for each in mine] == [names("busy")]
    (found,) = await admin.open_transactions([place])
    note_open(transcript, names, "open", found)
    assert found.producer.producer_id == described.producer_id
    assert await admin.find_hanging_transactions([place], longest_timeout_ms=-(10**9)) == []
    with pytest.raises(TransactionNotFound) as told:
        await admin.abort_open_transaction(place, 1)
    transcript.note("not there", names.hide(str(told.value)))
    note_open(transcript, names, "aborted", await admin.abort_open_transaction(place, 0))
    transcript.note("left", await admin.open_transactions([place]))
    ends = await admin.offset_ranges([place], read_committed=True)
    transcript.note("ends", str(ends[place]))
    with pytest.raises(TransactionNotFound):
        await admin.describe_transaction(names("nobody"))
    busy.abort_transaction(30)


def note_open(
    transcript: Transcript, names: Names, label: str, found: PartitionTransaction
) -> None:
    producer = found.producer
    assert producer.transaction_start_offset == found.start_offset
    transcript.note(
        label,
        (
            names.hide(found.transactional_id or ""),
            found.start_offset,
            producer.producer_epoch,
            producer.last_sequence,
            producer.coordinator_epoch,
        ),
    )


async def places_and_deletion(admin: Admin, names: Names, transcript: Transcript) -> None:
    topic = names("places")
    place = TopicPartition(topic, 0)
    await admin.create_topic(topic, partitions=1)
    producer = confluent_kafka.Producer({"bootstrap.servers": names.bootstrap, "linger.ms": 0})
    for number in range(5):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=1000 * (number + 1))
        producer.flush(30)
    for asked in (EARLIEST, LATEST, 1, 3000, 3001, 9999):
        found = (await admin.list_offsets({place: asked}))[place]
        transcript.note(f"at {asked}", (found.offset, found.timestamp))
    transcript.note("deleted", list((await admin.delete_records({place: 2})).values()))
    transcript.note("held", str((await admin.offset_ranges([place]))[place]))
    rows = await read(admin, {place: 0}, until=3, auto_offset_reset="earliest")
    transcript.note("left", [row["value"] for row in rows])
    configs = {each.name: each for each in await admin.broker_configs()}
    transcript.note("longest", configs["transaction.max.timeout.ms"].value)
    await admin.commit_offsets(names("group"), {place: 3})
    transcript.note(
        "lag", [each.lag for each in (await admin.describe_group(names("group"))).offsets]
    )
