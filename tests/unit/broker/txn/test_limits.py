"""Limits of the coordinator: a clear code, a line in the log, and nothing lost."""

from __future__ import annotations

import asyncio
import logging

import pytest

from onceflow.testing.world import World, run as simulate
from tests.unit.broker.broker_under_test import RawClient, Running, play, simulated_broker
from tests.unit.broker.txn.transactional_requests import (
    GENERATIONS,
    Generation,
    add,
    again,
    commit_offset,
    committed,
    ended,
    ends,
    init,
    killed,
    produce,
    ready,
    sent,
    states,
    wrote,
)

both = pytest.mark.parametrize("speaks", GENERATIONS.values(), ids=GENERATIONS)


def test_a_transactional_id_beyond_the_limit_is_refused_and_known_ones_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, max_transactional_ids=2) as running:
            client = await running.client()
            await client.create("orders")
            await ready(client, "a")
            await ready(client, "b")
            refused = await init(client, "c")
            assert refused["error_code"] == "POLICY_VIOLATION"
            assert refused["producer_id"] == -1
            known = await ready(client, "a")
            assert known.epoch == 1
            await wrote(client, known, "orders", b"x")
            await ended(client, known, commit=True)
            await ready(client, None)
            assert sorted(await states(client)) == ["a", "b"]
            image = killed(world.disk)
        async with again(world, image, max_transactional_ids=1) as (_, client):
            assert sorted(await states(client)) == ["a", "b"], "a smaller limit loses none"
            assert (await init(client, "c"))["error_code"] == "POLICY_VIOLATION"
            assert (await ready(client, "b")).epoch == 1
            assert await committed(client, "orders") == [b"x"]

    with caplog.at_level(logging.WARNING):
        simulate(1, main)
    assert "refused a new transactional id: max.transactional.ids is 2" in caplog.text


def test_an_id_that_expired_makes_room_for_another() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await ready(client, "a")
        assert (await init(client, "b"))["error_code"] == "POLICY_VIOLATION"
        await asyncio.sleep(70)
        await ready(client, "b")
        assert await states(client) == {"b": "Empty"}

    play(
        script,
        max_transactional_ids=1,
        transactional_id_expiration_ms=60_000,
        transaction_expiration_check_interval_ms=1_000,
    )


@pytest.mark.parametrize("jump_days", [30, -30])
def test_a_jump_of_the_wall_clock_makes_no_id_older(jump_days: int) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await ready(client, "before")
        world.clock.jump_wall(jump_days * 24 * 3_600_000)
        await ready(client, "behind")
        await asyncio.sleep(50)
        world.clock.jump_wall(-jump_days * 24 * 3_600_000)
        assert set(await states(client)) == {"before", "behind"}
        await asyncio.sleep(20)
        # What was stamped ahead of time is kept for longer, never for less.
        kept = {"behind"} if jump_days > 0 else set()
        assert set(await states(client)) == kept

    play(
        script,
        transactional_id_expiration_ms=60_000,
        transaction_expiration_check_interval_ms=1_000,
    )


def test_very_many_ids_expire_some_at_a_time() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        for number in range(200):
            await ready(client, f"id-{number}")
        await asyncio.sleep(60)
        counts = [len(await states(client)) for _ in running.server.node.transactions.expire()]
        assert counts == [136, 72, 8, 0]

    play(script, transactional_id_expiration_ms=60_000)


@both
def test_an_open_transaction_beyond_the_limit_is_refused_until_another_has_ended(
    speaks: Generation, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        first, second = await ready(client, "a"), await ready(client, "b")
        await wrote(client, first, "orders", b"a", speaks=speaks)
        if speaks.adds:
            assert await add(client, second, "orders", 0) == ["POLICY_VIOLATION"]
        answer = await produce(
            client, second, "orders", sent(second, 0, b"b"), version=speaks.produce
        )
        expected = "TRANSACTION_ABORTABLE" if speaks.adds else "POLICY_VIOLATION"
        assert answer["error_code"] == expected
        code = await commit_offset(client, second, "g", "orders", 1, version=speaks.offsets)
        assert code == expected
        await wrote(client, first, "orders", b"a", partition=1, speaks=speaks)
        await ended(client, first, commit=True, version=speaks.end)
        await wrote(client, second, "orders", b"b", speaks=speaks)
        await ended(client, second, commit=True, version=speaks.end)
        assert await committed(client, "orders") == [b"a", b"b"]

    with caplog.at_level(logging.WARNING):
        play(script, max_open_transactions=1)
    assert "refused a transaction of 'b': max.open.transactions is 1" in caplog.text


@both
def test_a_partition_beyond_the_limit_is_refused_and_the_others_stay_in_the_transaction(
    speaks: Generation, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 3)
        who = await ready(client, "t")
        for partition in (0, 1):
            await wrote(client, who, "orders", b"x", partition=partition, speaks=speaks)
        if speaks.adds:
            assert await add(client, who, "orders", 1, 2) == ["POLICY_VIOLATION"] * 2
        answer = await produce(
            client, who, "orders", sent(who, 0, b"y"), partition=2, version=speaks.produce
        )
        expected = "TRANSACTION_ABORTABLE" if speaks.adds else "POLICY_VIOLATION"
        assert answer["error_code"] == expected
        await wrote(client, who, "orders", b"x", sequence=1, speaks=speaks)
        await ended(client, who, commit=True, version=speaks.end)
        assert await committed(client, "orders") == [b"x", b"x"]
        assert await committed(client, "orders", partition=1) == [b"x"]
        assert await ends(client, "orders", 2) == (0, 0)

    with caplog.at_level(logging.WARNING):
        play(script, max_transaction_partitions=2)
    assert "transaction of 't': max.transaction.partitions is 2" in caplog.text


def test_as_many_as_the_limits_allow_are_served() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 3)
        for name in ("a", "b"):
            who = await ready(client, name)
            assert await add(client, who, "orders", 0, 1, 2) == ["NONE"] * 3
        assert await states(client) == {"a": "Ongoing", "b": "Ongoing"}

    play(script, max_transactional_ids=2, max_open_transactions=2, max_transaction_partitions=3)
