"""Transactions that are open for too long: when they end, and that they end in one way only."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from onceflow.errors import DiskFull
from onceflow.testing.world import World, run as simulate
from onceflow.txn.state import TransactionMetadata, TransactionState
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import NOW_MS, RawClient, Running, play, simulated_broker
from tests.unit.broker.held_journal import HeldJournal
from tests.unit.broker.txn.transactional_requests import (
    GENERATIONS,
    LEFT_BY,
    NEW,
    Generation,
    Who,
    again,
    commit_offset,
    committed,
    committed_offset,
    end,
    end_fields,
    ended,
    ends,
    init,
    killed,
    planted,
    produce,
    ready,
    sent,
    states,
    wrote,
)

both = pytest.mark.parametrize("speaks", GENERATIONS.values(), ids=GENERATIONS)
HOUR_MS = 3_600_000
TIMEOUT = 10.0
TIMEOUT_MS = 10_000


async def is_open(client: RawClient) -> bool:
    return (await states(client))["t"] == "Ongoing"


@both
@pytest.mark.parametrize("jump_ms", [0, HOUR_MS, -HOUR_MS])
def test_a_transaction_is_aborted_within_a_second_of_its_deadline_whatever_the_wall_clock_does(
    speaks: Generation, jump_ms: int
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", timeout_ms=TIMEOUT_MS)
        await asyncio.sleep(2 * TIMEOUT)  # no transaction is open yet
        await wrote(client, who, "orders", b"a", speaks=speaks)
        opened = world.clock.monotonic()
        world.clock.jump_wall(jump_ms)
        await asyncio.sleep(TIMEOUT - 0.5)
        assert await is_open(client)
        assert await ends(client, "orders") == (0, 1)
        await asyncio.sleep(opened + TIMEOUT + 1 - world.clock.monotonic())
        assert (await states(client))["t"] == "CompleteAbort"
        assert await ends(client, "orders") == (2, 2)
        assert await committed(client, "orders") == []

    play(script)


def test_what_is_added_later_does_not_make_the_time_longer() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 4)
        who = await ready(client, "t", timeout_ms=TIMEOUT_MS)
        for partition in range(4):
            await wrote(client, who, "orders", b"a", partition=partition)
            await asyncio.sleep(2)
        await asyncio.sleep(3)
        assert not await is_open(client)
        for partition in range(4):
            assert await ends(client, "orders", partition) == (2, 2)

    play(script)


def test_each_of_many_open_transactions_has_its_own_time() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        for number in (3, 1, 4, 2):
            who = await ready(client, f"t{number}", timeout_ms=1000 * number)
            await wrote(client, who, "orders", b"a")
        seen = []
        await asyncio.sleep(0.4)
        for _ in range(4):
            await asyncio.sleep(1)
            seen.append(sorted(await states(client, state_filters=["Ongoing"])))
        assert seen == [["t2", "t3", "t4"], ["t3", "t4"], ["t4"], []]

    play(script)


@both
@pytest.mark.parametrize("left", LEFT_BY)
def test_after_a_restart_the_time_that_is_left_counts(speaks: Generation, left: str) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t", timeout_ms=TIMEOUT_MS)
            await wrote(client, who, "orders", b"a", speaks=speaks)
            opened = world.clock.monotonic()
            await asyncio.sleep(6)
            image = LEFT_BY[left](world.disk)
            async with again(world, image) as (_, client):
                await asyncio.sleep(opened + TIMEOUT - 0.5 - world.clock.monotonic())
                assert await is_open(client)
                await asyncio.sleep(1.5)
                assert not await is_open(client)
                assert await ends(client, "orders") == (2, 2)

    simulate(1, main)


def test_a_time_that_ran_out_while_the_broker_was_down_ends_the_transaction_at_the_start() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t", timeout_ms=TIMEOUT_MS)
            await wrote(client, who, "orders", b"a")
        await asyncio.sleep(TIMEOUT)
        async with again(world, world.disk) as (_, client):
            await asyncio.sleep(1)
            assert await ends(client, "orders") == (2, 2)

    simulate(1, main)


def test_a_wall_clock_that_went_back_while_the_broker_was_down_gives_the_whole_time_at_most() -> (
    None
):
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t", timeout_ms=TIMEOUT_MS)
            await wrote(client, who, "orders", b"a")
        world.clock.jump_wall(-HOUR_MS)
        async with again(world, world.disk) as (_, client):
            await asyncio.sleep(TIMEOUT + 1)
            assert await ends(client, "orders") == (2, 2)

    simulate(1, main)


@both
@pytest.mark.parametrize("before", [0.3, 0.12, 0.04, 0.01, 0.0, -0.01, -0.1, -0.3])
def test_a_commit_that_races_the_timeout_has_one_outcome_everywhere(
    speaks: Generation, before: float
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 3)
        who = await ready(client, "t", timeout_ms=1000)
        for partition in range(3):
            await wrote(client, who, "orders", b"a", partition=partition, speaks=speaks)
        opened = world.clock.monotonic()
        if speaks is NEW:
            assert await commit_offset(client, who, "g", "orders", 7) == "NONE"
        await asyncio.sleep(max(opened + 1 - before - world.clock.monotonic(), 0))
        answer = await end(client, who, commit=True, version=speaks.end)
        await asyncio.sleep(2)
        is_committed = answer["error_code"] == "NONE"
        assert is_committed or answer["error_code"] == "PRODUCER_FENCED"
        for partition in range(3):
            assert await committed(client, "orders", partition=partition) == [b"a"] * is_committed
            assert await ends(client, "orders", partition) == (2, 2)
        if speaks is NEW:
            assert await committed_offset(client, "g", "orders") == (
                "NONE",
                7 if is_committed else -1,
            )
        state = "CompleteCommit" if is_committed else "CompleteAbort"
        assert await states(client) == {"t": state}

    play(script)


def test_the_race_was_won_by_either_side() -> None:
    """So that the test above shows something."""
    codes = set()
    for before in (0.3, -0.3):

        async def script(
            world: World, running: Running, client: RawClient, before: float = before
        ) -> None:
            await client.create("orders")
            who = await ready(client, "t", timeout_ms=1000)
            await wrote(client, who, "orders", b"a")
            await asyncio.sleep(1 - before)
            codes.add((await end(client, who, commit=True))["error_code"])

        play(script)
    assert codes == {"NONE", "PRODUCER_FENCED"}


def test_a_commit_that_is_being_synced_is_not_aborted_by_the_timeout() -> None:
    async def main(world: World) -> None:
        held = HeldJournal(world.background)
        async with simulated_broker(world, background=held) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t", timeout_ms=1000)
            await wrote(client, who, "orders", b"a")
            held.is_holding = True
            client.send(ApiKey.END_TXN, 5, end_fields(who, commit=True))
            await asyncio.sleep(5)
            assert not client.frames
            held.release()
            assert (await client.receive(ApiKey.END_TXN, 5))["error_code"] == "NONE"
            assert await committed(client, "orders") == [b"a"]
            assert await ends(client, "orders") == (2, 2)

    simulate(1, main)


def test_an_abort_by_timeout_is_seen_only_when_it_is_durable() -> None:
    async def main(world: World) -> None:
        held = HeldJournal(world.background)
        async with simulated_broker(world, background=held) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t", timeout_ms=1000)
            await wrote(client, who, "orders", b"a")
            held.is_holding = True
            await asyncio.sleep(3)
            assert await ends(client, "orders") == (0, 1)
            client.send(ApiKey.END_TXN, 5, end_fields(who, commit=False))
            await asyncio.sleep(3)
            assert not client.frames, "that it was aborted may still be lost"
            held.release()
            assert (await client.receive(ApiKey.END_TXN, 5))["error_code"] == "NONE"
            assert await ends(client, "orders") == (2, 2)

    simulate(1, main)


def test_offsets_of_a_transaction_that_timed_out_are_dropped() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", timeout_ms=1000)
        assert await commit_offset(client, who, "g", "orders", 7) == "NONE"
        assert await committed_offset(client, "g", "orders") == ("UNSTABLE_OFFSET_COMMIT", -1)
        await asyncio.sleep(2)
        assert await committed_offset(client, "g", "orders") == ("NONE", -1)

    play(script)


@pytest.mark.parametrize("timeout_ms", [0, -1, 5001])
def test_a_timeout_that_is_none_or_too_long_is_refused(timeout_ms: int) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        answer = await init(client, "t", timeout_ms=timeout_ms)
        assert answer["error_code"] == "INVALID_TRANSACTION_TIMEOUT"
        assert await states(client) == {}
        await ready(client, "t", timeout_ms=5000)
        await ready(client, None, timeout_ms=timeout_ms)

    play(script, transaction_max_timeout_ms=5000)


def test_a_transaction_that_cannot_be_aborted_now_does_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One needs a new producer id to be fenced, and there is no room to claim some."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            first = await ready(client, "last", timeout_ms=1000)
            idle = TransactionMetadata(
                "last", first.producer_id, 32765, 1000, TransactionState.EMPTY, NOW_MS
            )
            await planted(running, idle)
            image = killed(world.disk)
        async with again(world, image) as (running, client):
            last = await ready(client, "last", timeout_ms=1000)
            assert last.epoch == 32766
            other = await ready(client, "other", timeout_ms=1000)
            for who in (last, other):
                await wrote(client, who, "orders", b"a")
            topics = running.server.node.topics

            def full() -> Any:
                raise DiskFull("no room to claim producer ids")

            _use_up(running)
            monkeypatch.setattr(topics, "claim_producer_ids", full)
            await asyncio.sleep(2)
            assert await states(client) == {"last": "Ongoing", "other": "CompleteAbort"}
            monkeypatch.undo()
            await asyncio.sleep(1)
            assert await states(client) == {"last": "CompleteAbort", "other": "CompleteAbort"}
            assert await ends(client, "orders") == (4, 4)

    with caplog.at_level(logging.WARNING):
        simulate(1, main)
    assert "'last' could not be aborted yet: no room to claim producer ids" in caplog.text


def _use_up(running: Running) -> None:
    """No producer id is left of the block that was claimed."""
    ids = running.server.node.transactions._ids
    ids._block = None


def test_a_producer_that_timed_out_can_go_on_under_a_new_epoch() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", timeout_ms=1000)
        await wrote(client, who, "orders", b"a")
        await asyncio.sleep(2)
        late = await produce(client, who, "orders", sent(who, 1, b"b"))
        assert late["error_code"] == "INVALID_PRODUCER_EPOCH"
        after = await ready(client, "t", expected=Who("t", who.producer_id, who.epoch))
        assert after.epoch > who.epoch
        await wrote(client, after, "orders", b"c")
        await ended(client, after, commit=True)
        assert await committed(client, "orders") == [b"c"]

    play(script)
