"""What exactly-once does not promise, one test for each: they show the loss or the duplicate."""

from __future__ import annotations

import asyncio
from typing import Any

from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    RawClient,
    Running,
    play,
    simulated_broker,
    values_in,
)
from tests.unit.broker.txn.transactional_requests import (
    OLD,
    Who,
    again,
    committed,
    end,
    ended,
    ends,
    power_cut,
    produce,
    ready,
    sent,
    wrote,
)

CLEANING: dict[str, Any] = {
    "log_retention_check_interval_ms": 1000,
    "log_cleaner_backoff_ms": 1000,
}
ROLLING: dict[str, Any] = {"segment_ms": "1000"}


async def wrote_at(client: RawClient, who: Who, sequence: int, value: bytes, time: int) -> None:
    records = sent(who, sequence, value, timestamp=time)
    assert (await produce(client, who, "orders", records))["error_code"] == "NONE"


def test_not_promised_that_compaction_keeps_every_record_of_a_transaction() -> None:
    """A later record with the same key takes the place of one that was committed with others."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        compacted: dict[str, Any] = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
        await client.create("orders", **ROLLING, **compacted)
        who = await ready(client, "t")
        start = world.clock.wall_ms() - 20_000
        for number, value in enumerate((b"one", b"two")):
            await wrote_at(client, who, number, value, start + 2000 * number)
        who = await ended(client, who, commit=True)
        assert await committed(client, "orders") == [b"one", b"two"]
        for number, value in enumerate((b"three", b"four")):
            await wrote_at(client, who, number, value, start + 5000 + 2000 * number)
        await ended(client, who, commit=True)
        await asyncio.sleep(5)
        found = await committed(client, "orders")
        assert b"one" not in found
        assert found[-1] == b"four", "the last one of each key is kept"

    play(script, **CLEANING)


def test_not_promised_that_retention_spares_a_transaction() -> None:
    """The older part of a committed transaction is removed, the newer part stays."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", **ROLLING, retention_ms="60000")
        who = await ready(client, "t")
        now = world.clock.wall_ms()
        await wrote_at(client, who, 0, b"old", now - 58_000)
        await wrote_at(client, who, 1, b"new", now)
        await ended(client, who, commit=True)
        assert await committed(client, "orders") == [b"old", b"new"]
        await asyncio.sleep(10)
        start = (await client.list_offset("orders", -2))["offset"]
        assert start == 1
        assert await committed(client, "orders", start) == [b"new"], "half of a transaction"

    play(script, **CLEANING)


def test_not_promised_that_deleting_records_keeps_a_transaction_whole() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a")
        await wrote(client, who, "orders", b"b", sequence=1)
        part = {"partition_index": 0, "offset": 1}
        asked = {"topics": [{"name": "orders", "partitions": [part]}], "timeout": 1000}
        await client.ask(ApiKey.DELETE_RECORDS, 2, asked)
        await ended(client, who, commit=True)
        assert await committed(client, "orders", 1) == [b"b"]

    play(script)


def test_not_promised_that_a_reader_who_seeks_gets_whole_transactions() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        for number, value in enumerate((b"a", b"b", b"c")):
            await wrote(client, who, "orders", value, sequence=number)
        await ended(client, who, commit=True)
        assert await committed(client, "orders", 1) == [b"b", b"c"]

    play(script)


def test_not_promised_that_a_reader_of_some_partitions_gets_whole_transactions() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        who = await ready(client, "t")
        for partition, value in enumerate((b"debit", b"credit")):
            await wrote(client, who, "orders", value, partition=partition)
        await ended(client, who, commit=True)
        assert await committed(client, "orders", partition=0) == [b"debit"]

    play(script)


async def stored(client: RawClient) -> list[bytes | None]:
    records = (await client.fetch("orders", 0))["records"]
    return [value for _, value in values_in(records)]


def test_not_promised_that_a_restarted_producer_without_a_transactional_id_is_recognised() -> None:
    """It asks for an identity and gets another one: what it repeats is written again."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        for _ in ("first life", "second life"):
            who = await ready(client, None)
            await produce(client, who, "orders", sent(who, 0, b"payment 1"))
        assert await stored(client) == [b"payment 1", b"payment 1"]

    play(script)


def test_not_promised_that_a_producer_comes_back_as_itself_after_its_state_expired() -> None:
    """It repeats what it had no answer to, a day later: nobody remembers that it is a repeat."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, None)
        records = sent(who, 0, b"payment 1", timestamp=world.clock.wall_ms())
        await produce(client, who, "orders", records)
        await asyncio.sleep(120)
        await produce(client, who, "orders", records)
        assert await stored(client) == [b"payment 1", b"payment 1"]

    play(script, producer_id_expiration_ms=60_000, producer_id_expiration_check_interval_ms=10_000)


def test_not_promised_that_the_same_record_sent_twice_is_one() -> None:
    """Two sends are two records, whatever is in them: sequences are counted, not contents."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, None)
        for sequence in (0, 1):
            await produce(client, who, "orders", sent(who, sequence, b"payment 1"))
        assert await stored(client) == [b"payment 1", b"payment 1"]

    play(script)


def test_not_promised_that_two_producers_do_not_write_the_same() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        for name in ("one", "another"):
            who = await ready(client, name)
            await wrote(client, who, "orders", b"payment 1")
            await ended(client, who, commit=True)
        assert await committed(client, "orders") == [b"payment 1", b"payment 1"]

    play(script)


def test_not_promised_that_effects_outside_happen_once() -> None:
    """The record is there once; the mail that was sent on the way was sent twice."""
    mails: list[str] = []

    async def pay(client: RawClient, *, dies: bool) -> None:
        who = await ready(client, "payments")
        await wrote(client, who, "orders", b"payment 1")
        mails.append("payment 1 is done")
        if not dies:
            await ended(client, who, commit=True)

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await pay(client, dies=True)
        await pay(client, dies=False)
        assert await committed(client, "orders") == [b"payment 1"]

    play(script)
    assert mails == ["payment 1 is done"] * 2


def test_not_promised_that_readers_of_uncommitted_records_are_spared_what_is_aborted() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"aborted")
        await ended(client, who, commit=False)
        assert b"aborted" in await stored(client)
        assert await committed(client, "orders") == []

    play(script)


def test_not_promised_with_the_older_protocol_that_a_delayed_end_is_known_for_one() -> None:
    """KAFKA-17754: all transactions of an epoch look alike, so an EndTxn that was on its way for
    too long commits the half of the next one. The newer protocol is free of this."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"first", speaks=OLD)
        await ended(client, who, commit=True, version=OLD.end)
        await wrote(client, who, "orders", b"half", sequence=1, speaks=OLD)
        delayed = await end(client, who, commit=True, version=OLD.end)
        assert delayed["error_code"] == "NONE"
        assert await committed(client, "orders") == [b"first", b"half"]

    play(script)


def test_not_promised_without_syncs_that_a_power_cut_spares_what_was_committed() -> None:
    """`durability="os"`: the commit was answered, and is gone. But nothing hangs."""

    async def main(world: World) -> None:
        async with simulated_broker(world, durability="os") as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t")
            await wrote(client, who, "orders", b"a")
            await ended(client, who, commit=True)
            image = power_cut(world.disk)
        async with again(world, image, durability="os") as (_, client):
            assert await committed(client, "orders") == []
            assert await ends(client, "orders") == (0, 0)

    simulate(1, main)
