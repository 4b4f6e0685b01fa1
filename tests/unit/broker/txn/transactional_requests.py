"""Idempotent and transactional producers, request by request, against a broker inside a test.

`OLD` and `NEW` are the two generations of the transaction protocol: with the older one partitions
are added by a request and an epoch lasts; with the newer one writing adds, and every transaction
has an epoch of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from onceflow.broker.topics.internal_logs import TRANSACTIONS_TOPIC
from onceflow.broker.topics.partition import HostedPartition
from onceflow.records.batch import StoredBatch, iter_stored
from onceflow.records.control import Marker, parse_marker
from onceflow.records.partitioning import coordinator_partition
from onceflow.records.plain import PlainRecord, read_placed, write_records
from onceflow.testing.crash import crash_images
from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World
from onceflow.txn.records import encode_key, encode_value
from onceflow.txn.state import TransactionMetadata
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    NOW_MS,
    RawClient,
    Running,
    fetch_fields,
    fetched,
    produced,
    simulated_broker,
)

LONG_MS = 60_000
READ_COMMITTED = 1


class Generation(NamedTuple):
    """Which versions a client of the transaction protocol speaks."""

    produce: int
    end: int
    offsets: int

    @property
    def adds(self) -> bool:
        """Whether partitions have to be added by a request."""
        return self.produce < 12


OLD = Generation(produce=11, end=4, offsets=4)
NEW = Generation(produce=12, end=5, offsets=5)
GENERATIONS = {"older protocol": OLD, "newer protocol": NEW}


class Who(NamedTuple):
    """Who a producer says it is."""

    transactional_id: str | None
    producer_id: int
    epoch: int = 0

    def at(self, epoch: int) -> Who:
        return self._replace(epoch=epoch)


def sent(
    who: Who,
    sequence: int,
    *values: bytes,
    transactional: bool | None = None,
    timestamp: int = NOW_MS,
) -> bytes:
    """A batch with the producer's identity in it; transactional if the producer is."""
    is_transactional = who.transactional_id is not None
    batch = write_records(
        [PlainRecord(b"k", value) for value in values],
        timestamp,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=sequence,
        transactional=is_transactional if transactional is None else transactional,
    )
    return bytes(batch.buffer)


# --- requests ------------------------------------------------------------------------------------


async def init(
    client: RawClient,
    transactional_id: str | None,
    *,
    expected: Who | None = None,
    timeout_ms: int = LONG_MS,
    version: int = 5,
    **more: Any,
) -> Any:
    """What InitProducerId answers."""
    fields = {
        "transactional_id": transactional_id,
        "transaction_timeout": timeout_ms,
        "producer_id": -1 if expected is None else expected.producer_id,
        "producer_epoch": -1 if expected is None else expected.epoch,
        **more,
    }
    return await client.ask(ApiKey.INIT_PRODUCER_ID, version, fields)


async def ready(client: RawClient, transactional_id: str | None = None, **options: Any) -> Who:
    """A producer with an identity; what the one before it left open is aborted first."""
    answer = await init(client, transactional_id, **options)
    if answer["error_code"] == "CONCURRENT_TRANSACTIONS":
        answer = await init(client, transactional_id, **options)
    assert answer["error_code"] == "NONE", answer
    return Who(transactional_id, answer["producer_id"], answer["producer_epoch"])


def send_produce(
    client: RawClient,
    who: Who,
    topic: str,
    records: bytes,
    *,
    partition: int = 0,
    version: int = 12,
) -> None:
    topics = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    fields = {
        "transactional_id": who.transactional_id,
        "acks": -1,
        "timeout": 1000,
        "topic_data": topics,
    }
    client.send(ApiKey.PRODUCE, version, fields)


async def produce(
    client: RawClient,
    who: Who,
    topic: str,
    records: bytes,
    *,
    partition: int = 0,
    version: int = 12,
) -> Any:
    """What Produce answers for the one partition."""
    send_produce(client, who, topic, records, partition=partition, version=version)
    return produced(await client.receive(ApiKey.PRODUCE, version))


async def add(
    client: RawClient, who: Who, topic: str, *partitions: int, version: int = 3
) -> list[str]:
    """What AddPartitionsToTxn answers for each partition."""
    fields = {
        "v3_and_below_transactional_id": who.transactional_id,
        "v3_and_below_producer_id": who.producer_id,
        "v3_and_below_producer_epoch": who.epoch,
        "v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}],
    }
    answer = await client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, fields)
    (row,) = answer["results_by_topic_v3_and_below"]
    return [each["partition_error_code"] for each in row["results_by_partition"]]


def end_fields(who: Who, *, commit: bool) -> dict[str, Any]:
    return {
        "transactional_id": who.transactional_id,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "committed": commit,
    }


async def end(client: RawClient, who: Who, *, commit: bool, version: int = 5) -> Any:
    """What EndTxn answers."""
    return await client.ask(ApiKey.END_TXN, version, end_fields(who, commit=commit))


async def ended(client: RawClient, who: Who, *, commit: bool, version: int = 5) -> Who:
    """Who the producer is after it has ended its transaction."""
    answer = await end(client, who, commit=commit, version=version)
    assert answer["error_code"] == "NONE", answer
    if version < 5:
        return who
    return Who(who.transactional_id, answer["producer_id"], answer["producer_epoch"])


async def wrote(
    client: RawClient,
    who: Who,
    topic: str,
    *values: bytes,
    partition: int = 0,
    sequence: int = 0,
    speaks: Generation = NEW,
) -> int:
    """Writes in a transaction, which that opens; the offset of the first record."""
    if speaks.adds:
        assert await add(client, who, topic, partition) == ["NONE"]
    records = sent(who, sequence, *values)
    answer = await produce(client, who, topic, records, partition=partition, version=speaks.produce)
    assert answer["error_code"] == "NONE", answer
    return int(answer["base_offset"])


async def commit_offset(
    client: RawClient, who: Who, group: str, topic: str, offset: int, *, version: int = 5
) -> str:
    """What TxnOffsetCommit answers for partition 0."""
    part = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    fields = {
        "transactional_id": who.transactional_id,
        "group_id": group,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [part]}],
    }
    answer = await client.ask(ApiKey.TXN_OFFSET_COMMIT, version, fields)
    return str(answer["topics"][0]["partitions"][0]["error_code"])


async def committed_offset(client: RawClient, group: str, topic: str) -> tuple[str, int]:
    """What OffsetFetch answers about partition 0 to somebody who wants what is certain."""
    fields = {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "require_stable": True,
    }
    answer = await client.ask(ApiKey.OFFSET_FETCH, 7, fields)
    row = answer["topics"][0]["partitions"][0]
    return row["error_code"], row["committed_offset"]


async def states(client: RawClient, **filters: Any) -> dict[str, str]:
    """What ListTransactions tells, by transactional id."""
    fields = {
        "state_filters": [],
        "producer_id_filters": [],
        "duration_filter": -1,
        "transactional_id_pattern": None,
        **filters,
    }
    answer = await client.ask(ApiKey.LIST_TRANSACTIONS, 2, fields)
    assert answer["error_code"] == "NONE", answer
    return {
        row["transactional_id"]: row["transaction_state"] for row in answer["transaction_states"]
    }


# --- what readers see ----------------------------------------------------------------------------


async def fetch(
    client: RawClient, topic: str, offset: int = 0, *, partition: int = 0, **more: Any
) -> Any:
    """What a Fetch of a read_committed reader brings."""
    asked = {"isolation_level": READ_COMMITTED, "partitions": (partition,), **more}
    client.send(ApiKey.FETCH, 12, fetch_fields(topic, offset, **asked))
    return fetched(await client.receive(ApiKey.FETCH, 12))


async def committed(
    client: RawClient, topic: str, offset: int = 0, *, partition: int = 0
) -> list[bytes | None]:
    """The values that a read_committed reader gets, as protocol and clients have it."""
    values: list[bytes | None] = []
    while True:
        answer = await fetch(client, topic, offset, partition=partition)
        assert answer["error_code"] == "NONE", answer
        batches = list(iter_stored(answer["records"]))
        if not batches:
            return values
        values += _committed_values(batches, answer["aborted_transactions"], offset)
        offset = batches[-1].header.next_offset


def _committed_values(
    batches: Sequence[StoredBatch], rows: Sequence[Any], offset: int
) -> Iterator[bytes | None]:
    waiting = sorted((row["first_offset"], row["producer_id"]) for row in rows)
    aborted: set[int] = set()
    for stored in batches:
        header = stored.header
        while waiting and waiting[0][0] <= header.last_offset:
            aborted.add(waiting.pop(0)[1])
        if header.is_control:
            aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            for at, record in read_placed(stored):
                if at >= offset:
                    yield record.value


async def ends(client: RawClient, topic: str, partition: int = 0) -> tuple[int, int]:
    """The last stable offset and the high watermark, as ListOffsets tells them."""
    found = []
    for isolation in (1, 0):
        part = {"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}
        fields = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [{"name": topic, "partitions": [part]}],
            "timeout": 1000,
        }
        answer = await client.ask(ApiKey.LIST_OFFSETS, 11, fields)
        found.append(int(answer["topics"][0]["partitions"][0]["offset"]))
    return found[0], found[1]


async def markers(client: RawClient, topic: str, *, partition: int = 0) -> list[tuple[int, Marker]]:
    """Offset and meaning of every marker in a partition."""
    answer = await fetch(client, topic, partition=partition, isolation_level=0)
    return [
        (stored.header.base_offset, found)
        for stored in iter_stored(answer["records"])
        if stored.header.is_control and (found := parse_marker(stored)) is not None
    ]


def ensure_partition(running: Running, topic: str, index: int = 0) -> HostedPartition:
    found = running.server.node.topics.partition(topic, index)
    assert found is not None
    return found


# --- the end of a broker -------------------------------------------------------------------------


def killed(disk: SimDisk) -> SimDisk:
    """What `kill -9` leaves at this moment: all that was written."""
    return SimDisk(disk.tree)


def power_cut(disk: SimDisk) -> SimDisk:
    """What a power cut leaves at this moment, at the least: what was synced."""
    image = next(crash_images(disk, seed=0, subsets=0, first=len(disk.ops)))
    return image.disk


LEFT_BY = {"kill": killed, "power cut": power_cut}


@asynccontextmanager
async def again(
    world: World, disk: SimDisk, host: str = "again", **settings: Any
) -> AsyncIterator[tuple[Running, RawClient]]:
    """A second broker, on what the first one left."""
    async with simulated_broker(world, host=host, disk=disk, **settings) as running:
        yield running, await running.client()


def names_of(disk: SimDisk, ending: str) -> Sequence[str]:
    """The paths of all files whose names end so."""
    return [
        f"{directory.name}/{entry.name}"
        for directory in disk.entries(".")
        if directory.is_dir
        for entry in disk.entries(directory.name)
        if entry.name.endswith(ending)
    ]


async def planted(running: Running, transaction: TransactionMetadata) -> None:
    """Writes what is so of a transactional id into the log behind the coordinator's back; it is
    found at the next start."""
    record = PlainRecord(encode_key(transaction.transactional_id), encode_value(transaction))
    topic = running.server.node.topics.by_name[TRANSACTIONS_TOPIC]
    index = coordinator_partition(transaction.transactional_id, len(topic.partitions))
    await planted_records(running, TRANSACTIONS_TOPIC, index, record)


async def planted_records(
    running: Running, topic: str, index: int, *records: PlainRecord, **batch: Any
) -> int:
    """Appends to one of the broker's own logs what no client may; the offset of the first."""
    made = write_records(records, NOW_MS, **batch)
    stored, ticket = ensure_partition(running, topic, index).append(made)
    durable: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    ticket.add_done_callback(durable.set_result)
    assert await durable is None
    return stored.header.base_offset
