"""The operators' view, on a broker inside the test: offsets, deletion, settings, transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.admin.transactions import TransactionNotFound, hanging
from onceflow.client.errors.requests import BrokerError, TopicNotFound
from onceflow.client.types import (
    LATEST,
    ActiveProducer,
    ListedTransaction,
    OffsetRange,
    PartitionTransaction,
    TransactionDescription,
)
from onceflow.errors import InvalidSetting
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import NOW_MS, RawClient, Running, batch, play
from tests.unit.broker.txn.transactional_requests import LONG_MS, ended, ready, wrote
from tests.unit.client.consumer.simulated_readers import ADVERTISED, P0, P1

Script = Callable[[World, RawClient, Admin], Awaitable[None]]


def administer(script: Script, *, partitions: int = 1, **settings: Any) -> None:
    async def whole(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", partitions)
        made = Admin(
            str(ADVERTISED),
            {"client.id": "tester"},
            net=running.net,
            rand=world.rand.fork("admin"),
            clock=world.clock,
            default_api_timeout_ms=2000,
        )
        async with made as admin:
            await script(world, client, admin)

    play(whole, advertise=ADVERTISED, **settings)


def test_topics_are_made_changed_and_deleted() -> None:
    async def script(world: World, client: RawClient, admin: Admin) -> None:
        made = await admin.create_topic("paid", partitions=2, configs={"retention.ms": "1000"})
        assert [each.name for each in await admin.list_topics()] == ["orders", "paid"]
        assert len(made.partitions) == 2
        assert len((await admin.add_partitions("paid", 3)).partitions) == 3
        await admin.alter_configs("paid", changes={"segment.ms": "9"}, removals=["retention.ms"])
        is_set = {
            each.name: each.value for each in await admin.topic_configs("paid") if each.is_set
        }
        assert is_set == {"segment.ms": "9"}
        described = await admin.describe_topic("paid")
        assert described.offsets == dict.fromkeys(range(3), OffsetRange(0, 0))
        await admin.delete_topic("paid")
        with pytest.raises(TopicNotFound):
            await admin.describe_topic("paid")

    administer(script)


def test_settings_of_a_broker_are_told() -> None:
    async def script(world: World, client: RawClient, admin: Admin) -> None:
        found = {each.name: each for each in await admin.broker_configs()}
        assert found["transaction.max.timeout.ms"].value == "77000"
        assert found["transaction.max.timeout.ms"].is_set

    administer(script, transaction_max_timeout_ms=77_000)


def test_records_are_deleted_up_to_an_offset() -> None:
    async def script(world: World, client: RawClient, admin: Admin) -> None:
        for partition in (0, 1):
            await client.produce("orders", batch(b"a"), partition=partition)
            await client.produce("orders", batch(b"b"), partition=partition)
        assert await admin.delete_records({P0: 1, P1: -1}) == {P0: 1, P1: 2}
        ranges = await admin.offset_ranges([P0, P1])
        assert ranges == {P0: OffsetRange(1, 2), P1: OffsetRange(2, 2)}
        with pytest.raises(BrokerError, match=r"orders-0.*OFFSET_OUT_OF_RANGE"):
            await admin.delete_records({P0: 5})

    administer(script, partitions=2)


def test_offsets_are_listed_by_time_and_for_readers_of_committed_records() -> None:
    async def script(world: World, client: RawClient, admin: Admin) -> None:
        await client.produce("orders", batch(b"a"))
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"open")
        latest = {P0: LATEST}
        assert (await admin.list_offsets(latest))[P0].offset == 2
        assert (await admin.list_offsets(latest, read_committed=True))[P0].offset == 1
        assert await admin.offsets_at([P0], NOW_MS) == {P0: 0}
        for before_1970 in (-1, -2, -3, -1000):  # to Kafka -1 is the end, -3 the largest timestamp
            assert await admin.offsets_at([P0], before_1970) == {P0: 0}
        assert await admin.offsets_at([P0], NOW_MS + 10_000_000_000) == {P0: 2}
        assert await admin.offset_ranges([P0], read_committed=True) == {P0: OffsetRange(0, 1)}

    administer(script)


def test_a_group_has_offsets_and_can_be_deleted() -> None:
    async def script(world: World, client: RawClient, admin: Admin) -> None:
        await client.produce("orders", batch(b"a", b"b"))
        await admin.commit_offsets("readers", {P0: 1})
        assert [each.group_id for each in await admin.list_groups()] == ["readers"]
        assert await admin.committed_offsets("readers") == {P0: 1}
        (offset,) = (await admin.describe_group("readers")).offsets
        assert (offset.committed, offset.lag) == (1, 1)
        await admin.delete_group("readers")
        assert await admin.list_groups() == []

    administer(script)


def test_transactions_are_listed_and_described() -> None:
    async def script(world: World, client: RawClient, admin: Admin) -> None:
        idle = await ready(client, "idle")
        who = await ready(client, "busy")
        await wrote(client, who, "orders", b"a")
        await wrote(client, who, "orders", b"b", partition=1)
        assert await admin.list_transactions() == [
            ListedTransaction("busy", who.producer_id, "Ongoing"),
            ListedTransaction("idle", idle.producer_id, "Empty"),
        ]
        ongoing = await admin.list_transactions(states=["Ongoing"])
        assert [each.transactional_id for each in ongoing] == ["busy"]
        open_long: Any = {"states": ["Ongoing"], "open_longer_than_ms": 1_000_000}
        assert await admin.list_transactions(**open_long) == []
        mine = await admin.list_transactions(producer_ids=[idle.producer_id])
        assert [each.transactional_id for each in mine] == ["idle"]
        with pytest.raises(InvalidSetting, match="'Sleeping': not a state"):
            await admin.list_transactions(states=["Sleeping"])
        described = await admin.describe_transaction("busy")
        assert described.start_ms is not None
        assert described == TransactionDescription(
            "busy",
            str(ADVERTISED),
            "Ongoing",
            who.producer_id,
            who.epoch,
            LONG_MS,
            described.start_ms,
            frozenset({P0, P1}),
        )
        # Never begun: the broker says -1.
        assert (await admin.describe_transaction("idle")).start_ms is None
        with pytest.raises(TransactionNotFound, match="nobody"):
            await admin.describe_transaction("nobody")

    administer(script, partitions=2)


def test_what_readers_wait_for_is_told_and_can_be_aborted() -> None:
    async def script(world: World, client: RawClient, admin: Admin) -> None:
        await client.produce("orders", batch(b"a"))
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"b", b"c")
        producer = ActiveProducer(who.producer_id, who.epoch, 1, NOW_MS, -1, 1)
        (found,) = await admin.open_transactions()
        assert found == PartitionTransaction(P0, producer, 1, "t")
        assert (await admin.describe_producers([P0]))[P0] == (producer,)
        # Old, but its coordinator means to end it.
        assert await admin.find_hanging_transactions(longest_timeout_ms=-(10**15)) == []
        with pytest.raises(TransactionNotFound, match="begins at offset 0"):
            await admin.abort_open_transaction(P0, 0)
        assert (await admin.offset_ranges([P0], read_committed=True))[P0].latest == 1
        aborted = await admin.abort_open_transaction(P0, 1)
        assert aborted.producer == producer
        assert await admin.open_transactions([P0]) == []
        assert (await admin.offset_ranges([P0], read_committed=True))[P0].latest == 4
        await ended(client, who, commit=False)

    administer(script)


def test_a_transaction_hangs_unless_its_coordinator_will_mark_that_partition() -> None:
    def found(partition: TopicPartition, name: str | None) -> PartitionTransaction:
        return PartitionTransaction(partition, ActiveProducer(1, 0, 0, 0, 0, 5), 5, name)

    described = {
        "known": TransactionDescription("known", "", "Ongoing", 1, 0, 1, 1, frozenset({P0}))
    }
    looked_after = found(P0, "known")
    lost = [found(P1, "known"), found(P0, None), found(P0, "forgotten")]
    assert hanging([looked_after, *lost], described) == lost
