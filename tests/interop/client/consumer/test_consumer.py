"""Our consumer without others of its group, on both brokers: reading by hand, positions, commits,
resets, transactions; answers compared."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.codec.transactions import OffsetToCommit
from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.consumer import NoPosition, OffsetOutOfRange
from onceflow.client.errors.requests import TopicNotFound
from onceflow.client.producer.producer import Producer
from onceflow.types import TopicPartition
from tests.interop.client.consumer.polled_consumers import Script, quiet, read, script, write
from tests.interop.harness import Compare, Names, Transcript

pytestmark = pytest.mark.interop


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def told(names: Names, error: BaseException) -> object:
    return names.hide(f"{type(error).__name__}: {error}")


async def by_hand(admin: Admin, names: Names, transcript: Transcript) -> None:
    """assign, poll in all three ways, seek, pause and resume."""
    topic = names("hand")
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await admin.create_topic(topic, partitions=2)
    await write(names.bootstrap, topic, numbers(10))
    async with Consumer(names.bootstrap, auto_offset_reset="earliest") as consumer:
        await consumer.assign([topic])
        assert consumer.assignment == {one, other}
        records = await read(consumer, 10)
        transcript.note("all", sorted((each.partition, each.offset) for each in records))
        await consumer.seek(one, 3)
        assert await consumer.position(one) == 3
        transcript.note("seek", [each.value for each in await read(consumer, 2)])
        await consumer.seek_to_beginning([one])
        found = await consumer.poll_by_partition(5, max_records=2)
        transcript.note("two", [each.offset for each in found[one]])
        await consumer.seek_to_end()
        transcript.note("end", [await consumer.position(one), await quiet(consumer)])
        await consumer.seek_to_beginning()
        consumer.pause([one])
        table = await consumer.poll_table(5)
        assert table is not None
        transcript.note("paused", table.column("partition").to_pylist())
        assert await consumer.poll_table(0.7) is None
        consumer.resume([one])
        table = await consumer.poll_table(5, max_rows=4)
        assert table is not None
        transcript.note("resumed", table.column("offset").to_pylist())
        await consumer.assign([other])
        with pytest.raises(TopicNotFound):
            await consumer.assign([names("absent")])
        await consumer.seek_to_beginning()
        transcript.note("other", [each.value for each in await read(consumer, 5)])


async def by_time(admin: Admin, names: Names, transcript: Transcript) -> None:
    topic = names("time")
    place = TopicPartition(topic, 0)
    await admin.create_topic(topic, partitions=1)
    for number in range(5):
        await write(names.bootstrap, topic, [b"%d" % number], timestamp_ms=1000 * (number + 1))
    async with Consumer(names.bootstrap, auto_offset_reset="none") as consumer:
        await consumer.assign([place])
        with pytest.raises(NoPosition):
            await consumer.poll(5)
        for time in (1, 3000, 3001, 9999):
            await consumer.seek_to_timestamp(time)
            transcript.note(f"at {time}", await consumer.position(place))
        await consumer.seek(place, 99)
        with pytest.raises(OffsetOutOfRange) as error:
            await consumer.poll(5)
        transcript.note("too far", told(names, error.value))
        await consumer.seek(place, 4)
        transcript.note("back", [each.value for each in await read(consumer, 1)])


async def one_by_one(admin: Admin, names: Names, transcript: Transcript) -> None:
    """Positions and commits follow the records that were taken, not those that were fetched."""
    topic, group = names("single"), names("group")
    place = TopicPartition(topic, 0)
    await admin.create_topic(topic, partitions=1)
    await write(names.bootstrap, topic, numbers(10))
    how: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest"}
    async with Consumer(names.bootstrap, **how) as consumer:
        consumer.subscribe([topic])
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 3:
                break
        transcript.note("taken", [seen, await consumer.position(place)])
        await consumer.commit()
        transcript.note("committed", (await consumer.committed())[place].offset)
        transcript.note("polled", [each.offset for each in await consumer.poll(1, max_records=2)])
    transcript.note("at close", (await admin.committed_offsets(group))[place])
    with suppress(ZeroDivisionError):
        async with Consumer(names.bootstrap, **how) as consumer:
            consumer.subscribe([topic])
            async for record in consumer:
                transcript.note("fails at", record.offset // 0)
    transcript.note("after a failure", (await admin.committed_offsets(group))[place])


async def commits(admin: Admin, names: Names, transcript: Transcript) -> None:
    """With and without metadata, of others' partitions, by itself, and where a group goes on."""
    topic, group = names("commits"), names("group")
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await admin.create_topic(topic, partitions=2)
    await write(names.bootstrap, topic, numbers(20))
    how: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest"}
    async with Consumer(names.bootstrap, **how, enable_auto_commit=False) as consumer:
        await consumer.assign([one, other])
        transcript.note("none yet", await consumer.committed())
        await read(consumer, 20)
        await consumer.commit({one: 4, other: OffsetToCommit(5, "half way")})
        committed = await consumer.committed()
        transcript.note("some", [str(committed[one]), str(committed[other])])
        await consumer.rewind()
        transcript.note("rewound", [await consumer.position(each) for each in (one, other)])
        await read(consumer, 11)
        await consumer.commit()
        committed = await consumer.committed([one])
        transcript.note("all", [str(at) for at in committed.values()])
        await consumer.commit({one: 7})
    async with Consumer(names.bootstrap, **how, auto_commit_interval_ms=0) as consumer:
        await consumer.assign([one])
        transcript.note("on", [each.offset for each in await read(consumer, 3)])
        await quiet(consumer)
        await quiet(consumer)
        transcript.note("by itself", (await consumer.committed([one]))[one].offset)
        await consumer.seek(one, 2)
        await read(consumer, 8)
    transcript.note("at close", (await admin.committed_offsets(group))[one])
    # Nothing was committed of this one: it goes back to where it began.
    async with Consumer(names.bootstrap, group_id=names("new")) as consumer:
        await consumer.assign([one])
        assert await consumer.position(one) == 10
        await write(names.bootstrap, topic, [b"late", b"later"], partition=0)
        await read(consumer, 2)
        await consumer.rewind()
        transcript.note("began at", await consumer.position(one))


async def in_transactions(admin: Admin, names: Names, transcript: Transcript) -> None:
    """Offsets in a transaction: seen when it commits; after an abort the work is done again."""
    source, target, group = names("source"), names("target"), names("group")
    place = TopicPartition(source, 0)
    await admin.create_topic(source, partitions=1)
    await admin.create_topic(target, partitions=1)
    await write(names.bootstrap, source, numbers(6))
    how: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest"}
    async with (
        Consumer(names.bootstrap, **how, enable_auto_commit=False) as consumer,
        Producer(names.bootstrap, transactional_id=names("id")) as producer,
    ):
        consumer.subscribe([source])
        await producer.init_transactions()
        for attempt, count in enumerate((4, 4, 2)):
            records = (await read(consumer, count))[:count]
            await producer.begin_transaction()
            for record in records:
                await producer.send(target, record.value)
            offsets = {place: records[-1].offset + 1}
            await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if attempt == 0:
                await producer.flush()  # else what was not sent yet never is
                await producer.abort_transaction()
                transcript.note("aborted", await consumer.committed())
            else:
                await producer.commit_transaction()
                transcript.note("committed", str((await consumer.committed())[place]))
            await consumer.rewind()
            transcript.note("position", await consumer.position(place))
    async with Consumer(names.bootstrap, auto_offset_reset="earliest") as consumer:
        await consumer.assign([target])
        transcript.note("written", [each.value for each in await read(consumer, 6)])
    async with Consumer(
        names.bootstrap, auto_offset_reset="earliest", isolation_level="read_uncommitted"
    ) as consumer:
        await consumer.assign([target])
        transcript.note("all", [each.value for each in await read(consumer, 10)])


async def deleted(admin: Admin, names: Names, transcript: Transcript) -> None:
    """A group whose place is gone goes on where `auto.offset.reset` says."""
    topic, group = names("deleted"), names("group")
    place = TopicPartition(topic, 0)
    await admin.create_topic(topic, partitions=1)
    await write(names.bootstrap, topic, numbers(10))
    await admin.commit_offsets(group, {place: 2})
    await admin.delete_records({place: 6})
    for reset in ("earliest", "latest"):
        how: dict[str, Any] = {"group_id": group, "auto_offset_reset": reset}
        async with Consumer(names.bootstrap, **how, enable_auto_commit=False) as consumer:
            await consumer.assign([place])
            found = [each.offset for each in await quiet(consumer, 3 if reset == "earliest" else 1)]
            transcript.note(reset, [found, await consumer.position(place)])
    async with Consumer(
        names.bootstrap, group_id=group, auto_offset_reset="none", enable_auto_commit=False
    ) as consumer:
        await consumer.assign([place])
        with pytest.raises(OffsetOutOfRange) as error:
            await consumer.poll(5)
        transcript.note("none", told(names, error.value))


async def lagging(admin: Admin, names: Names, transcript: Transcript) -> None:
    """Markers and aborted records are no records; open transactions are told apart."""
    topic = names("lag")
    place = TopicPartition(topic, 0)
    await admin.create_topic(topic, partitions=1)
    async with Producer(names.bootstrap, transactional_id=names("id")) as producer:
        await producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            await producer.begin_transaction()
            for value in numbers(3):
                await (await producer.send(topic, value, partition=0))
            await end()
        async with Consumer(names.bootstrap, auto_offset_reset="earliest") as consumer:
            await consumer.assign([place])
            consumer.pause([place])
            transcript.note("offsets", str(await consumer.lag()))
            transcript.note("counted", str(await consumer.lag(exact=True)))
            consumer.resume([place])
            await anext(consumer)
            transcript.note("fetched", str(await consumer.lag()))
            await read(consumer, 2)
            await producer.begin_transaction()
            await (await producer.send(topic, b"open", partition=0))
            await quiet(consumer)
            transcript.note("open", str(await consumer.lag()))
            await producer.abort_transaction()
            await quiet(consumer)
            transcript.note("aborted", str(await consumer.lag()))


SCRIPTS: tuple[Script, ...] = (
    by_hand,
    by_time,
    one_by_one,
    commits,
    in_transactions,
    deleted,
    lagging,
)


@pytest.mark.parametrize("work", SCRIPTS, ids=lambda work: work.__name__)
def test_alone(compare: Compare, work: Script) -> None:
    compare(script(work))


def test_cancelled_polls_lose_nothing(onceflow_server: str) -> None:
    """Whoever gives up waiting finds every record later."""

    async def work(admin: Admin, names: Names, transcript: Transcript) -> None:
        topic = names("cancelled")
        await admin.create_topic(topic, partitions=1)
        await write(names.bootstrap, topic, numbers(300))
        async with Consumer(
            names.bootstrap, group_id=names("group"), auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            found: list[int] = []
            while len(found) < 300:
                try:
                    async with asyncio.timeout(0.002):
                        found += [each.offset for each in await consumer.poll(5, max_records=7)]
                except TimeoutError:
                    continue
            assert found == list(range(300))

    script(work)(onceflow_server, Names.fresh(onceflow_server), Transcript())
