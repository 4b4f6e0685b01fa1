"""What operators see and do: producers and transactions are listed, hanging ones aborted."""

from __future__ import annotations

import asyncio
from typing import Any

from onceflow.records.plain import PlainRecord, write_records
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    NOW_MS,
    RawClient,
    Running,
    batch,
    play,
    simulated_broker,
)
from tests.unit.broker.held_journal import HeldJournal
from tests.unit.broker.txn.transactional_requests import (
    Who,
    again,
    commit_offset,
    committed,
    committed_offset,
    ended,
    ends,
    ensure_partition,
    killed,
    produce,
    ready,
    sent,
    states,
    wrote,
)


async def described(client: RawClient, *names: str) -> list[Any]:
    asked = {"transactional_ids": list(names)}
    answer = await client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked)
    return list(answer["transaction_states"])


async def producers(client: RawClient, topic: str, partition: int = 0) -> Any:
    asked = {"topics": [{"name": topic, "partition_indexes": [partition]}]}
    answer = await client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, asked)
    return answer["topics"][0]["partitions"][0]


async def mark(client: RawClient, who: Who, topic: str, **changes: Any) -> str:
    """What WriteTxnMarkers answers to an operator who aborts, or commits."""
    marker = {
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
        **changes,
    }
    answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker]})
    return str(answer["markers"][0]["topics"][0]["partitions"][0]["error_code"])


# --- looking -------------------------------------------------------------------------------------


def test_transactions_are_listed_by_state_producer_age_and_name() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        idle = await ready(client, "idle")
        for name, commit in (("paid-1", True), ("paid-2", False)):
            who = await ready(client, name)
            await wrote(client, who, "orders", b"a")
            await ended(client, who, commit=commit)
        long = await ready(client, "open-long")
        await wrote(client, long, "orders", b"a")
        await asyncio.sleep(10)
        short = await ready(client, "open-short")
        await wrote(client, short, "orders", b"a")
        everything = {
            "idle": "Empty",
            "paid-1": "CompleteCommit",
            "paid-2": "CompleteAbort",
            "open-long": "Ongoing",
            "open-short": "Ongoing",
        }
        assert await states(client) == everything
        found = await states(client, state_filters=["Ongoing", "CompleteCommit"])
        assert sorted(found) == ["open-long", "open-short", "paid-1"]
        found = await states(client, producer_id_filters=[idle.producer_id, long.producer_id])
        assert sorted(found) == ["idle", "open-long"]
        found = await states(client, duration_filter=5_000, state_filters=["Ongoing"])
        assert sorted(found) == ["open-long"]
        assert sorted(await states(client, transactional_id_pattern="paid-.*")) == [
            "paid-1",
            "paid-2",
        ]
        assert await states(client, transactional_id_pattern="paid") == {}, "the whole name"
        assert await states(client, state_filters=["Ongoing"], transactional_id_pattern="p.*") == {}

    play(script)


def test_filters_that_mean_nothing_are_told() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await ready(client, "t")
        asked: dict[str, Any] = {"producer_id_filters": [], "duration_filter": -1}
        unknown = {**asked, "state_filters": ["Empty", "Sleeping"]}
        answer = await client.ask(ApiKey.LIST_TRANSACTIONS, 1, unknown)
        assert answer["unknown_state_filters"] == ["Sleeping"]
        assert [row["transactional_id"] for row in answer["transaction_states"]] == ["t"]
        only = {**asked, "state_filters": ["Sleeping"]}
        answer = await client.ask(ApiKey.LIST_TRANSACTIONS, 1, only)
        assert answer["transaction_states"] == []
        broken = {**asked, "state_filters": [], "transactional_id_pattern": "("}
        answer = await client.ask(ApiKey.LIST_TRANSACTIONS, 2, broken)
        assert answer["error_code"] == "INVALID_REGULAR_EXPRESSION"

    play(script)


def test_an_open_transaction_is_described_with_its_partitions_and_its_time() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 3)
        who = await ready(client, "t", timeout_ms=45_000)
        began = world.clock.wall_ms()
        for partition in (2, 0):
            await wrote(client, who, "orders", b"a", partition=partition)
        assert await commit_offset(client, who, "g", "orders", 1) == "NONE"
        row, unknown = await described(client, "t", "nobody")
        assert unknown["error_code"] == "TRANSACTIONAL_ID_NOT_FOUND"
        assert (row["error_code"], row["transaction_state"]) == ("NONE", "Ongoing")
        assert (row["producer_id"], row["producer_epoch"]) == who[1:]
        assert row["transaction_timeout"] == 45_000
        assert 0 <= row["transaction_start_time"] - began < 1000
        topics = {each["topic"]: each["partitions"] for each in row["topics"]}
        assert topics["orders"] == [0, 2]
        assert len(topics["__consumer_offsets"]) == 1
        await ended(client, who, commit=True)
        (row,) = await described(client, "t")
        assert (row["transaction_state"], row["topics"]) == ("CompleteCommit", [])

    play(script)


def test_what_is_told_of_a_decision_is_durable() -> None:
    async def main(world: World) -> None:
        held = HeldJournal(world.background)
        async with simulated_broker(world, background=held) as running:
            client, lister, describer = [await running.client() for _ in range(3)]
            await client.create("orders")
            who = await ready(client, "t", timeout_ms=1000)
            await wrote(client, who, "orders", b"a")
            held.is_holding = True
            await asyncio.sleep(2)  # it times out, and that cannot be written
            filters = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
            lister.send(ApiKey.LIST_TRANSACTIONS, 1, filters)
            describer.send(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["t"]})
            await asyncio.sleep(5)
            assert not lister.frames
            assert not describer.frames
            held.release()
            listed = await lister.receive(ApiKey.LIST_TRANSACTIONS, 1)
            assert listed["transaction_states"][0]["transaction_state"] == "CompleteAbort"
            answer = await describer.receive(ApiKey.DESCRIBE_TRANSACTIONS, 0)
            assert answer["transaction_states"][0]["transaction_state"] == "CompleteAbort"

    simulate(1, main)


def test_producers_of_a_partition_are_described() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        plain, who = await ready(client), await ready(client, "t")
        await produce(client, plain, "orders", sent(plain, 0, b"a", b"b", timestamp=NOW_MS + 7))
        await wrote(client, who, "orders", b"c")
        found = await producers(client, "orders")
        rows = {row["producer_id"]: row for row in found["active_producers"]}
        assert rows[plain.producer_id] == {
            "producer_id": plain.producer_id,
            "producer_epoch": 0,
            "last_sequence": 1,
            "last_timestamp": NOW_MS + 7,
            "coordinator_epoch": -1,
            "current_txn_start_offset": -1,
        }
        assert rows[who.producer_id]["current_txn_start_offset"] == 2
        await ended(client, who, commit=True)
        found = await producers(client, "orders")
        rows = {row["producer_id"]: row for row in found["active_producers"]}
        ended_row = rows[who.producer_id]
        assert ended_row["current_txn_start_offset"] == -1
        assert (ended_row["producer_epoch"], ended_row["coordinator_epoch"]) == (1, 0)
        assert ended_row["last_sequence"] == -1, "a new epoch begins anew"
        assert (await producers(client, "orders", 1))["active_producers"] == []
        absent = await producers(client, "orders", 7)
        assert absent["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"

    play(script)


# --- hanging transactions ------------------------------------------------------------------------


async def hanging(running: Running, client: RawClient) -> Who:
    """A transaction that no coordinator knows: appended behind the back of all rules."""
    who = Who("nobody's", (await ready(client)).producer_id, 3)
    records = write_records(
        [PlainRecord(b"k", b"hanging")],
        NOW_MS,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=0,
        transactional=True,
    )
    ensure_partition(running, "orders").append(records)
    await client.produce("orders", batch(b"behind"))
    assert await ends(client, "orders") == (0, 2)
    return who


def test_a_hanging_transaction_is_found_and_aborted_by_a_marker() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            await hanging(running, client)
            assert await states(client) == {}
            await asyncio.sleep(300)
            (row,) = (await producers(client, "orders"))["active_producers"]
            assert row["current_txn_start_offset"] == 0
            found = Who(None, row["producer_id"], row["producer_epoch"])
            assert await mark(client, found, "orders") == "NONE"
            assert await ends(client, "orders") == (3, 3)
            assert await committed(client, "orders") == [b"behind"]
            (row,) = (await producers(client, "orders"))["active_producers"]
            assert row["current_txn_start_offset"] == -1
            assert await states(client) == {}, "the coordinator was not asked"
            image = killed(world.disk)
        async with again(world, image) as (_, client):
            assert await ends(client, "orders") == (3, 3)
            assert await committed(client, "orders") == [b"behind"]

    simulate(1, main)


def test_a_marker_that_does_not_fit_is_refused_and_not_written() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await hanging(running, client)
        assert await mark(client, who.at(2), "orders") == "INVALID_PRODUCER_EPOCH"
        assert await mark(client, who, "absent") == "UNKNOWN_TOPIC_OR_PARTITION"
        assert await ends(client, "orders") == (0, 2)
        assert await mark(client, who, "orders", coordinator_epoch=9) == "NONE"
        code = await mark(client, who, "orders", coordinator_epoch=8)
        assert code == "TRANSACTION_COORDINATOR_FENCED"
        assert await ends(client, "orders") == (3, 3)

    play(script)


def test_an_operators_marker_in_the_offsets_decides_about_offsets_too() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        assert await commit_offset(client, who, "g", "orders", 7) == "NONE"
        index = running.server.node.groups.partition_for("g")
        topics = [{"name": "__consumer_offsets", "partition_indexes": [index]}]
        assert await mark(client, who, "", topics=topics, transaction_result=True) == "NONE"
        assert await committed_offset(client, "g", "orders") == ("NONE", 7)

    play(script, offsets_topic_num_partitions=1)
