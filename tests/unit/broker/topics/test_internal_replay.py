"""Records of the broker's own topics that a start cannot apply: it starts all the same, and says
so; unless a newer version wrote them, which is to be asked first."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from onceflow.broker.topics.internal_logs import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from onceflow.errors import NewerFormat
from onceflow.group.records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    encode_group,
    encode_key,
    encode_offset,
)
from onceflow.records.batch import seal
from onceflow.records.partitioning import coordinator_partition
from onceflow.records.plain import PlainRecord, write_records
from onceflow.testing.world import World, run as simulate
from onceflow.txn import records as transactions
from onceflow.txn.state import TransactionMetadata, TransactionState
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import NOW_MS, RawClient, Running, simulated_broker
from tests.unit.broker.txn.transactional_requests import (
    Who,
    again,
    commit_offset,
    committed,
    committed_offset,
    ended,
    ends,
    killed,
    planted_records,
    ready,
    states,
    wrote,
)

PARTITIONS = 2
SKIP: dict[str, Any] = {"skip_unknown_records": True}
Lines = list[str]


def errors(caplog: pytest.LogCaptureFixture) -> Lines:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


async def made(client: RawClient) -> Who:
    """A group with an offset, and a transactional id that has committed."""
    await client.create("orders")
    who = await ready(client, "t")
    await wrote(client, who, "orders", b"a")
    assert await commit_offset(client, who, "g", "orders", 1) == "NONE"
    return await ended(client, who, commit=True)


async def works(client: RawClient) -> None:
    """Nothing was lost, and groups and transactions go on."""
    assert await committed_offset(client, "g", "orders") == ("NONE", 1)
    assert await states(client) == {"t": "CompleteCommit"}
    who = await ready(client, "t")
    await wrote(client, who, "orders", b"b")
    assert await commit_offset(client, who, "g", "orders", 2) == "NONE"
    await ended(client, who, commit=True)
    assert await committed_offset(client, "g", "orders") == ("NONE", 2)
    assert await committed(client, "orders") == [b"a", b"b"]
    stable, high = await ends(client, "orders")
    assert stable == high


def restarted(
    plant: Callable[[Running, Who], Awaitable[None]],
    check: Callable[[Running, RawClient], Awaitable[None]],
    **settings: Any,
) -> None:
    """What is planted is found by two starts: after a kill, and after an orderly stop."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            await plant(running, await made(await running.client()))
            left = killed(world.disk)
        for host, disk in (("after a kill", left), ("after a stop", world.disk)):
            async with again(world, disk, host, **settings) as (running, client):
                await check(running, client)

    simulate(1, main)


# --- groups --------------------------------------------------------------------------------------

INDEX = coordinator_partition("g", PARTITIONS)
OFFSET_KEY = encode_key(OffsetKey("g", "orders", 0))
GROUP_KEY = encode_key(GroupKey("g"))
OFFSET = encode_offset(OffsetValue(99, -1, "", NOW_MS))
MEMBER = MemberValue("m", "i", "c", "/h", 60_000, 10_000, b"", b"")
GROUP = GroupValue("consumer", 3, "range", "m", NOW_MS, (MEMBER,))
BROKEN: dict[str, tuple[bytes | None, bytes, str]] = {
    "no key": (None, OFFSET, "2 bytes are due"),
    "a key that is none": (b"k", OFFSET, "2 bytes are due"),
    "a key of no type": (b"no key", OFFSET, "a key of type 28271 is not known"),
    "a key that is cut off": (OFFSET_KEY[:-1], OFFSET, "4 bytes are due"),
    "a value that is none": (OFFSET_KEY, b"no value", "a value of version 28271 is not known"),
    "a value that is cut off": (OFFSET_KEY, OFFSET[:-1], "8 bytes are due"),
    "a group that is cut off": (GROUP_KEY, encode_group(GROUP)[:-1], "bytes are due"),
    "no text": (OFFSET_KEY, OFFSET[:14] + b"\x00\x01\xff" + OFFSET[-8:], "not UTF-8"),
    "one member twice": (
        GROUP_KEY,
        encode_group(GROUP._replace(members=(MEMBER, MEMBER))),
        "two members have one member id",
    ),
    "one instance twice": (
        GROUP_KEY,
        encode_group(GROUP._replace(members=(MEMBER, MEMBER._replace(member_id="n")))),
        "two members have one group instance id",
    ),
    "a generation that is none": (
        GROUP_KEY,
        encode_group(GROUP._replace(generation=-5)),
        "generation -5",
    ),
}


@pytest.mark.parametrize(("key", "value", "why"), BROKEN.values(), ids=BROKEN)
def test_a_record_of_groups_that_cannot_be_applied_is_skipped_and_named(
    key: bytes | None, value: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    planted: list[int] = []

    async def plant(running: Running, who: Who) -> None:
        record = PlainRecord(key, value)
        planted.append(await planted_records(running, OFFSETS_TOPIC, INDEX, record))

    async def check(running: Running, client: RawClient) -> None:
        one, summary = errors(caplog)
        assert f"at offset {planted[0]} of {OFFSETS_TOPIC}-{INDEX}" in one
        assert why in one
        assert f"skipped 1 records of {OFFSETS_TOPIC}" in summary
        caplog.clear()
        await works(client)

    restarted(plant, check)


def test_others_of_its_batch_are_not_touched(caplog: pytest.LogCaptureFixture) -> None:
    async def plant(running: Running, who: Who) -> None:
        value = encode_offset(OffsetValue(1, -1, "", NOW_MS))
        other = encode_key(OffsetKey("g", "other", 0))
        rows = [(b"k", OFFSET), (other, value), (b"l", OFFSET)]
        records = [PlainRecord(*row) for row in rows]
        await planted_records(running, OFFSETS_TOPIC, INDEX, *records)

    async def check(running: Running, client: RawClient) -> None:
        assert "skipped 2 records" in errors(caplog)[-1]
        caplog.clear()
        await works(client)
        assert await committed_offset(client, "g", "other") == ("NONE", 1)

    restarted(plant, check)


async def planted_batch(running: Running, topic: str, index: int, *records: PlainRecord) -> None:
    """A batch that is whole, and of which all but the last record can be read."""
    made = write_records(records, NOW_MS)
    data = bytearray(made.buffer)
    data[-1] = 0x7F  # as many headers, of which there is none
    broken = seal(
        data,
        attributes=0,
        last_offset_delta=len(records) - 1,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(records),
    )
    partition = running.server.node.topics.by_name[topic].partitions[index]
    _, ticket = partition.append(broken)
    durable: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    ticket.add_done_callback(durable.set_result)
    assert await durable is None


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_what_is_left_of_a_batch_that_cannot_be_read_on_is_skipped(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    index = INDEX if topic == OFFSETS_TOPIC else T_INDEX

    async def plant(running: Running, who: Who) -> None:
        old = replace(STATE, producer_id=who.producer_id, epoch=who.epoch)
        first = (
            PlainRecord(OFFSET_KEY, encode_offset(OffsetValue(1, -1, "", NOW_MS)))
            if topic == OFFSETS_TOPIC
            else PlainRecord(T_KEY, transactions.encode_value(old))
        )
        await planted_batch(running, topic, index, first, PlainRecord(b"k", b"v"))

    async def check(running: Running, client: RawClient) -> None:
        one, summary = errors(caplog)
        assert f"of {topic}-{index}" in one
        assert "skipped 1 records" in summary
        caplog.clear()
        await works(client)

    restarted(plant, check)


@pytest.mark.parametrize("kind", ["offset", "group", "tombstone"])
def test_a_group_is_not_believed_in_anothers_partition(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is written next goes to its own: of the two a start could not say which is newer."""
    rows = {
        "offset": (OFFSET_KEY, OFFSET),
        "group": (GROUP_KEY, encode_group(GROUP)),
        "tombstone": (OFFSET_KEY, None),
    }

    async def plant(running: Running, who: Who) -> None:
        for index in range(PARTITIONS):
            if index != INDEX:
                await planted_records(running, OFFSETS_TOPIC, index, PlainRecord(*rows[kind]))

    async def check(running: Running, client: RawClient) -> None:
        one, _ = errors(caplog)
        assert f"group 'g' belongs to partition {INDEX}" in one
        caplog.clear()
        await works(client)
        found = running.server.node.groups.find("g")
        assert found is not None
        assert not found.members

    restarted(plant, check)


# --- transactions --------------------------------------------------------------------------------

T_INDEX = coordinator_partition("t", PARTITIONS)
T_KEY = transactions.encode_key("t")
STATE = TransactionMetadata("t", 0, 0, 60_000, TransactionState.COMPLETE_COMMIT, NOW_MS)
ORDERS = frozenset({TopicPartition("orders", 0)})
Change = Callable[[TransactionMetadata], TransactionMetadata]


def written(transaction: TransactionMetadata) -> bytes:
    """Also one that the coordinator would not write."""
    is_bad = transaction.state is TransactionState.EMPTY and transaction.partitions
    stand_in = replace(transaction, state=TransactionState.ONGOING) if is_bad else transaction
    data = bytearray(transactions.encode_value(stand_in))
    data[16] = transaction.state.value
    return bytes(data)


IMPOSSIBLE: dict[str, tuple[Change, str]] = {
    "an epoch that goes back": (
        lambda t: replace(
            t, epoch=t.epoch - 1, state=TransactionState.PREPARE_COMMIT, partitions=ORDERS
        ),
        "cannot become",
    ),
    "an idle epoch that goes back": (lambda t: replace(t, epoch=t.epoch - 1), "cannot become"),
    "a producer that is none": (lambda t: replace(t, producer_id=-7), "cannot be"),
    "an epoch that is none": (lambda t: replace(t, epoch=-7), "cannot become"),
    "a client that goes back": (
        lambda t: replace(
            t,
            epoch=t.epoch + 1,
            state=TransactionState.PREPARE_ABORT,
            next_producer_id=t.producer_id,
            next_producer_epoch=0,
        ),
        "cannot be that of a client",
    ),
    "a client that is none": (
        lambda t: replace(
            t, state=TransactionState.ONGOING, partitions=ORDERS, next_producer_id=-9
        ),
        "cannot be that of a client",
    ),
    "an empty one with partitions": (
        lambda t: replace(t, state=TransactionState.EMPTY, partitions=ORDERS),
        "nothing is open in state Empty",
    ),
    "a complete one with partitions": (
        lambda t: replace(t, state=TransactionState.COMPLETE_ABORT, partitions=ORDERS),
        "nothing is open in state CompleteAbort",
    ),
    "an idle one with a client to come": (
        lambda t: replace(t, next_producer_id=t.producer_id + 1),
        "nothing is open in state CompleteCommit",
    ),
}


@pytest.mark.parametrize("is_followed", [False, True])
@pytest.mark.parametrize(("change", "why"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_state_that_cannot_be_leaves_the_one_before_it(
    change: Change, why: str, is_followed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    planted: list[int] = []

    async def plant(running: Running, who: Who) -> None:
        held = running.server.node.transactions.find("t")
        assert held is not None
        record = PlainRecord(T_KEY, written(change(held)))
        planted.append(await planted_records(running, TRANSACTIONS_TOPIC, T_INDEX, record))
        if is_followed:
            record = PlainRecord(T_KEY, written(held))
            await planted_records(running, TRANSACTIONS_TOPIC, T_INDEX, record)

    async def check(running: Running, client: RawClient) -> None:
        found = errors(caplog)
        if found or not is_followed:  # what is outdated may go by unseen
            assert f"at offset {planted[0]} of {TRANSACTIONS_TOPIC}-{T_INDEX}" in found[0]
            assert why in found[0]
            assert f"skipped 1 records of {TRANSACTIONS_TOPIC}" in found[1]
        caplog.clear()
        await works(client)

    restarted(plant, check)


NO_STATE: dict[str, tuple[bytes | None, bytes, str]] = {
    "no key": (None, b"v", "cut off"),
    "a key of no type": (b"no key", b"v", "a key of type 28271 is not known"),
    "a key that is cut off": (T_KEY[:-1], b"v", "bytes at byte"),
    "a value that is none": (T_KEY, b"v", "cut off"),
    "a value that is cut off": (T_KEY, written(STATE)[:-1], "cut off"),
    "no state": (T_KEY, written(replace(STATE, epoch=9))[:16] + b"\x09" + bytes(20), "status 9"),
}


@pytest.mark.parametrize(("key", "value", "why"), NO_STATE.values(), ids=NO_STATE)
def test_a_record_of_transactions_that_cannot_be_read_is_skipped_and_named(
    key: bytes | None, value: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    planted: list[int] = []

    async def plant(running: Running, who: Who) -> None:
        record = PlainRecord(key, value)
        planted.append(await planted_records(running, TRANSACTIONS_TOPIC, T_INDEX, record))

    async def check(running: Running, client: RawClient) -> None:
        one, summary = errors(caplog)
        assert f"at offset {planted[0]} of {TRANSACTIONS_TOPIC}-{T_INDEX}" in one
        assert why in one
        assert f"skipped 1 records of {TRANSACTIONS_TOPIC}" in summary
        caplog.clear()
        await works(client)

    restarted(plant, check)


def test_an_id_is_not_believed_in_anothers_partition(caplog: pytest.LogCaptureFixture) -> None:
    async def plant(running: Running, who: Who) -> None:
        state = replace(STATE, producer_id=who.producer_id, epoch=who.epoch + 9)
        record = PlainRecord(T_KEY, written(replace(state, state=TransactionState.COMPLETE_ABORT)))
        for index in range(PARTITIONS):
            if index != T_INDEX:
                await planted_records(running, TRANSACTIONS_TOPIC, index, record)

    async def check(running: Running, client: RawClient) -> None:
        one, _ = errors(caplog)
        assert f"transactional id 't' belongs to partition {T_INDEX}" in one
        caplog.clear()
        await works(client)

    restarted(plant, check)


def test_what_is_open_is_not_forgotten_by_a_tombstone(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody would ever end it, and readers would wait for it for ever."""

    async def plant(running: Running, who: Who) -> None:
        await wrote(await running.client(), who, "orders", b"x")
        await planted_records(running, TRANSACTIONS_TOPIC, T_INDEX, PlainRecord(T_KEY, None))

    async def check(running: Running, client: RawClient) -> None:
        assert "no way from Ongoing to Dead" in errors(caplog)[0]
        caplog.clear()
        assert await states(client) == {"t": "Ongoing"}
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"b")
        await ended(client, who, commit=True)
        assert await committed(client, "orders") == [b"a", b"b"]

    restarted(plant, check)


@pytest.mark.parametrize("is_newer", [True, False])
def test_what_is_open_in_partitions_and_known_to_nobody_is_aborted(
    is_newer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where records about transactions were skipped, as where they were lost."""

    async def main(world: World) -> None:
        async with simulated_broker(world, **ONE) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "u")
            await wrote(client, who, "orders", b"x")
            assert await commit_offset(client, who, "g", "orders", 7) == "NONE"
            log = running.server.node.topics.by_name[TRANSACTIONS_TOPIC].partitions[0].log
            running.server.node.store.delete_records(log, log.end_offset)
            rest = write_newer("u") if is_newer else PlainRecord(b"k", b"v")
            await planted_records(running, TRANSACTIONS_TOPIC, 0, rest)
        async with again(world, world.disk, **ONE, **SKIP) as (_, client):
            assert "skipped 1 records" in errors(caplog)[1]
            stable, high = await ends(client, "orders")
            assert stable == high
            assert await committed(client, "orders") == []
            assert await committed_offset(client, "g", "orders") == ("NONE", -1)
            who = await ready(client, "u")
            await wrote(client, who, "orders", b"y")
            await ended(client, who, commit=True)
            assert await committed(client, "orders") == [b"y"]

    simulate(1, main)


ONE: dict[str, Any] = {
    "transaction_state_log_num_partitions": 1,
    "offsets_topic_num_partitions": 1,
}


# --- newer versions ------------------------------------------------------------------------------


def write_newer(transactional_id: str) -> PlainRecord:
    """A state as a version yet to come may write it."""
    value = struct.pack(">h", 2) + b"nobody knows"
    return PlainRecord(transactions.encode_key(transactional_id), value)


NEWER: dict[str, tuple[str, int, PlainRecord, str]] = {
    "an offset": (
        OFFSETS_TOPIC,
        INDEX,
        PlainRecord(OFFSET_KEY, b"\x00\x05" + OFFSET[2:]),
        "a value of version 5 is not known",
    ),
    "a group": (
        OFFSETS_TOPIC,
        INDEX,
        PlainRecord(GROUP_KEY, b"\x00\x05" + encode_group(GROUP)[2:]),
        "a value of version 5 is not known",
    ),
    "another kind of group": (
        OFFSETS_TOPIC,
        INDEX,
        PlainRecord(b"\x00\x03\x00\x01g", b"\x00\x00\x00\x00"),
        "a key of type 3 is not known",
    ),
    "a transaction": (
        TRANSACTIONS_TOPIC,
        T_INDEX,
        write_newer("t"),
        "a value of version 2 is not known",
    ),
    "another kind of transaction": (
        TRANSACTIONS_TOPIC,
        T_INDEX,
        PlainRecord(b"\x00\x01\x00\x01t", b"\x00\x00"),
        "a key of type 1 is not known",
    ),
}
newer = pytest.mark.parametrize(
    ("topic", "index", "record", "why"), NEWER.values(), ids=list(NEWER)
)


@newer
def test_what_a_newer_version_wrote_is_not_forgotten_by_a_start(
    topic: str, index: int, record: PlainRecord, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            await made(await running.client())
            at = await planted_records(running, topic, index, record, record)
        for host in ("first", "second"):
            with pytest.raises(NewerFormat) as refused:
                async with again(world, world.disk, host):
                    pass
            told = str(refused.value)
            count = 1 if topic == TRANSACTIONS_TOPIC else 2  # of an id the latest counts
            assert f"{count} records of {topic} were written by a newer version" in told
            assert f"at offset {at + 2 - count} of partition {index}" in told
            assert why in told
            assert "skip.unknown.records = true" in told
        assert errors(caplog) == []
        async with again(world, world.disk, "third", **SKIP) as (_, client):
            *named, summary = errors(caplog)
            assert len(named) == count
            assert why in named[0]
            assert f"skipped {count} records of {topic}" in summary
            await works(client)

    simulate(1, main)


def test_what_is_gone_or_replaced_may_have_been_of_any_version(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def plant(running: Running, who: Who) -> None:
        gone = PlainRecord(b"\x00\x03\x00\x01g", None)
        await planted_records(running, OFFSETS_TOPIC, INDEX, gone)
        held = running.server.node.transactions.find("t")
        assert held is not None
        rows = [write_newer("t"), PlainRecord(T_KEY, written(held)), PlainRecord(gone.key, None)]
        await planted_records(running, TRANSACTIONS_TOPIC, T_INDEX, *rows)

    async def check(running: Running, client: RawClient) -> None:
        assert errors(caplog) == []
        await works(client)

    restarted(plant, check)


def test_a_flood_of_bad_records_is_counted_and_not_told_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def plant(running: Running, who: Who) -> None:
        records = [PlainRecord(b"%d" % number, b"v") for number in range(250)]
        await planted_records(running, OFFSETS_TOPIC, INDEX, *records)

    async def check(running: Running, client: RawClient) -> None:
        *named, summary = errors(caplog)
        assert len(named) == 100
        assert "skipped 250 records" in summary
        caplog.clear()
        await works(client)

    restarted(plant, check)
