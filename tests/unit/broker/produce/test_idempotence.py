"""Idempotent producers through Produce: what is appended, what is a repeat, what is refused."""

from __future__ import annotations

import asyncio
import logging

import pytest

from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    NOW_MS,
    RawClient,
    Running,
    play,
    produced,
    simulated_broker,
    values_in,
)
from tests.unit.broker.held_journal import HeldJournal
from tests.unit.broker.txn.transactional_requests import (
    Who,
    ensure_partition,
    produce,
    ready,
    send_produce,
    sent,
)

LARGEST_SEQUENCE = 2**31 - 1
LOST_STATE = "knows nothing of producer"


async def refused(client: RawClient, who: Who, records: bytes) -> str:
    """The code of a refusal, which leaves no trace."""
    before = await client.list_offset("orders", -1)
    answer = await produce(client, who, "orders", records)
    assert await client.list_offset("orders", -1) == before
    return str(answer["error_code"])


def test_a_repeat_of_the_last_five_batches_gets_the_first_answer_and_is_not_written() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        batches = [
            sent(who, 2 * number, b"a", b"b", timestamp=NOW_MS + number) for number in range(7)
        ]
        for number, each in enumerate(batches):
            answer = await produce(client, who, "orders", each)
            assert (answer["error_code"], answer["base_offset"]) == ("NONE", 2 * number)
            assert answer["log_append_time"] is None
        for number in (6, 2, 4, 3, 5, 2):
            answer = await produce(client, who, "orders", batches[number])
            assert (answer["error_code"], answer["base_offset"]) == ("NONE", 2 * number)
            assert answer["log_append_time"] == NOW_MS + number, "the stored batch's timestamp"
            assert answer["log_start_offset"] == 0
        for number in (0, 1):
            code = await refused(client, who, batches[number])
            assert code == "OUT_OF_ORDER_SEQUENCE_NUMBER", "older than the window"
        assert (await client.list_offset("orders", -1))["offset"] == 14

    play(script)


def test_a_repeat_is_known_by_its_whole_range_of_sequences() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        await produce(client, who, "orders", sent(who, 0, b"a", b"b"))
        for other in (sent(who, 0, b"a"), sent(who, 1, b"b"), sent(who, 0, b"a", b"b", b"c")):
            assert await refused(client, who, other) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        again = await produce(client, who, "orders", sent(who, 0, b"x", b"y"))
        assert again["base_offset"] == 0
        records = (await client.fetch("orders", 0))["records"]
        assert values_in(records) == [(0, b"a"), (1, b"b")]

    play(script)


def test_a_gap_is_refused_and_the_next_in_sequence_is_taken_after_it() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        await produce(client, who, "orders", sent(who, 0, b"a"))
        assert await refused(client, who, sent(who, 2, b"c")) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        assert (await produce(client, who, "orders", sent(who, 1, b"b")))["base_offset"] == 1
        assert (await produce(client, who, "orders", sent(who, 2, b"c")))["base_offset"] == 2

    play(script)


def test_an_old_epoch_is_refused_and_a_new_one_starts_at_zero() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = (await ready(client)).at(3)
        await produce(client, who, "orders", sent(who, 0, b"a"))
        assert await refused(client, who, sent(who.at(2), 1, b"z")) == "INVALID_PRODUCER_EPOCH"
        assert await refused(client, who, sent(who.at(2), 0, b"a")) == "INVALID_PRODUCER_EPOCH"
        code = await refused(client, who, sent(who.at(4), 1, b"b"))
        assert code == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        assert (await produce(client, who, "orders", sent(who.at(4), 0, b"b")))["base_offset"] == 1
        assert await refused(client, who, sent(who, 0, b"a")) == "INVALID_PRODUCER_EPOCH"

    play(script)


def test_sequences_go_on_at_zero_after_the_largest() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        across = sent(who, LARGEST_SEQUENCE - 1, b"a", b"b", b"c")
        assert (await produce(client, who, "orders", across))["base_offset"] == 0
        assert (await produce(client, who, "orders", across))["base_offset"] == 0
        assert (await produce(client, who, "orders", sent(who, 1, b"d")))["base_offset"] == 3
        assert (await client.list_offset("orders", -1))["offset"] == 4

    play(script)


def test_the_largest_sequence_is_followed_by_zero() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        await produce(client, who, "orders", sent(who, LARGEST_SEQUENCE, b"a"))
        assert await refused(client, who, sent(who, 1, b"c")) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        assert (await produce(client, who, "orders", sent(who, 0, b"b")))["base_offset"] == 1

    play(script)


def test_an_unknown_producer_may_go_on_anywhere_and_the_log_says_that_state_was_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        assert (await produce(client, who, "orders", sent(who, 41, b"a")))["base_offset"] == 0
        assert await refused(client, who, sent(who, 41 + 2, b"c")) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        other = await ready(client)
        await produce(client, other, "orders", sent(other, 0, b"b"))

    with caplog.at_level(logging.INFO):
        play(script)
    (line,) = [each.getMessage() for each in caplog.records if LOST_STATE in each.getMessage()]
    assert "orders-0" in line
    assert "sequence 41" in line


def test_sequences_are_counted_for_each_partition_by_itself() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        who, other = await ready(client), await ready(client)
        for partition in (0, 1):
            for each in (who, other):
                answer = await produce(
                    client, each, "orders", sent(each, 0, b"a"), partition=partition
                )
                assert answer["error_code"] == "NONE"
        assert (await client.list_offset("orders", -1))["offset"] == 2

    play(script)


@pytest.mark.parametrize("repeats", [1, 4])
def test_a_repeat_of_a_batch_that_is_being_synced_is_answered_with_it_and_not_before(
    repeats: int,
) -> None:
    async def main(world: World) -> None:
        held = HeldJournal(world.background)
        async with simulated_broker(world, background=held) as running:
            client = await running.client()
            others = [await running.client() for _ in range(repeats)]
            await client.create("orders")
            who = await ready(client)
            held.is_holding = True
            for each in (client, *others):
                send_produce(each, who, "orders", sent(who, 0, b"a"))
            await asyncio.sleep(5)
            assert not any(each.frames for each in (client, *others)), "nothing is durable yet"
            assert ensure_partition(running, "orders").log.end_offset == 1
            held.release()
            for each in (client, *others):
                answer = produced(await each.receive(ApiKey.PRODUCE, 12))
                assert (answer["error_code"], answer["base_offset"]) == ("NONE", 0)

    simulate(7, main)


def test_five_in_flight_are_judged_one_against_the_other_while_none_is_durable() -> None:
    async def main(world: World) -> None:
        held = HeldJournal(world.background)
        async with simulated_broker(world, background=held) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client)
            held.is_holding = True
            for number in (0, 1, 2, 4, 3, 1):
                send_produce(client, who, "orders", sent(who, number, b"a"))
            await asyncio.sleep(1)
            held.release()
            answers = [produced(await client.receive(ApiKey.PRODUCE, 12)) for _ in range(6)]
            assert [each["base_offset"] for each in answers] == [0, 1, 2, -1, 3, 1]
            assert answers[3]["error_code"] == "OUT_OF_ORDER_SEQUENCE_NUMBER"

    simulate(7, main)


def test_a_producer_that_was_silent_for_long_is_forgotten() -> None:
    """So a repeat is not known for one any more: what `producer.id.expiration.ms` means."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        now = world.clock.wall_ms()
        await produce(client, who, "orders", sent(who, 0, b"a", timestamp=now))
        await asyncio.sleep(50)
        again = await produce(client, who, "orders", sent(who, 0, b"a", timestamp=now))
        assert again["base_offset"] == 0, "still known"
        await asyncio.sleep(30)
        assert ensure_partition(running, "orders").producers.find(who.producer_id) is None
        again = await produce(client, who, "orders", sent(who, 0, b"a", timestamp=now))
        assert again["base_offset"] == 1, "written a second time"

    play(
        script,
        producer_id_expiration_ms=60_000,
        producer_id_expiration_check_interval_ms=10_000,
    )


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", timeout_ms=900_000)
        now = world.clock.wall_ms()
        await produce(client, who, "orders", sent(who, 0, b"a", timestamp=now))
        await asyncio.sleep(300)
        again = await produce(client, who, "orders", sent(who, 0, b"a", timestamp=now))
        assert again["base_offset"] == 0

    play(
        script,
        producer_id_expiration_ms=60_000,
        producer_id_expiration_check_interval_ms=10_000,
    )


def test_a_repeat_of_deleted_records_is_still_a_repeat() -> None:
    """DeleteRecords takes records, not the memory of who wrote them."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        for number in range(3):
            await produce(client, who, "orders", sent(who, number, b"a"))
        part = {"partition_index": 0, "offset": -1}
        fields = {"topics": [{"name": "orders", "partitions": [part]}], "timeout": 1000}
        gone = await client.ask(ApiKey.DELETE_RECORDS, 2, fields)
        assert gone["topics"][0]["partitions"][0]["low_watermark"] == 3
        again = await produce(client, who, "orders", sent(who, 1, b"a"))
        assert (again["error_code"], again["base_offset"]) == ("NONE", 1)
        assert again["log_start_offset"] == 3
        assert (await produce(client, who, "orders", sent(who, 3, b"b")))["base_offset"] == 3

    play(script)


def test_acks_are_no_reason_to_forget_a_repeat() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        for acks in (1, -1):
            answer = await client.produce("orders", sent(who, 0, b"a"), acks=acks)
            assert (answer["error_code"], answer["base_offset"]) == ("NONE", 0)
        assert (await client.list_offset("orders", -1))["offset"] == 1

    play(script)
