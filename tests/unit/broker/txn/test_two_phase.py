"""Two-phase commit (KIP-939): a prepared transaction waits for its coordinator, however long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, play, simulated_broker
from tests.unit.broker.txn.transactional_requests import (
    LEFT_BY,
    Who,
    again,
    commit_offset,
    committed,
    committed_offset,
    end,
    ended,
    ends,
    init,
    produce,
    ready,
    sent,
    states,
    wrote,
)

ENABLED: dict[str, Any] = {"transaction_two_phase_commit_enable": True}
TWO_PHASE: dict[str, Any] = {"version": 6, "enable2_pc": True}
KEEP: dict[str, Any] = {**TWO_PHASE, "keep_prepared_txn": True}
WEEK = 7 * 24 * 3600


def kept(answer: Any) -> tuple[Who, Who]:
    """Who the client is now, and whose transaction it may end."""
    assert answer["error_code"] == "NONE", answer
    ongoing = Who("t", answer["ongoing_txn_producer_id"], answer["ongoing_txn_producer_epoch"])
    return Who("t", answer["producer_id"], answer["producer_epoch"]), ongoing


async def advertised(client: RawClient) -> int:
    """The highest version of InitProducerId."""
    asked = {"client_software_name": "test", "client_software_version": "1"}
    answer = await client.ask(ApiKey.API_VERSIONS, 3, asked)
    (row,) = (each for each in answer["api_keys"] if each["api_key"] == ApiKey.INIT_PRODUCER_ID)
    return int(row["max_version"])


def test_it_is_off_unless_the_broker_is_told_otherwise() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        assert await advertised(client) == 5
        answer = await init(client, "t", **TWO_PHASE)
        assert answer["error_code"] == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        answer = await init(client, "t", version=6, keep_prepared_txn=True)
        assert answer["error_code"] == "UNSUPPORTED_VERSION"
        assert await states(client) == {}

    play(script)


def test_it_is_advertised_where_it_is_on() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        assert await advertised(client) == 6

    play(script, **ENABLED)


def test_no_time_ends_a_prepared_transaction_and_operators_see_its_age() -> None:
    async def main(world: World) -> None:
        settings = {**ENABLED, "log_retention_check_interval_ms": 10**9}
        async with simulated_broker(world, **settings) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t", timeout_ms=1, **TWO_PHASE)
            other = await ready(client, "other", timeout_ms=1000)
            await wrote(client, who, "orders", b"a")
            await wrote(client, other, "orders", b"b")
            await asyncio.sleep(3600)
            client = await running.client()
            assert await states(client) == {"t": "Ongoing", "other": "CompleteAbort"}
            for older_than_ms, found in ((3_500_000, {"t": "Ongoing"}), (3_700_000, {})):
                filters = {"duration_filter": older_than_ms, "state_filters": ["Ongoing"]}
                assert await states(client, **filters) == found
            assert (await ends(client, "orders"))[0] == 0
            await ended(client, who, commit=True)
            assert await committed(client, "orders") == [b"a"]

    simulate(1, main)


@pytest.mark.parametrize("left", [*LEFT_BY, "orderly stop"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_client_that_comes_back_after_both_have_died_ends_what_was_prepared(
    left: str, commit: bool
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, **ENABLED) as running:
            client = await running.client()
            await client.create("orders", 2)
            who = await ready(client, "t", **TWO_PHASE)
            for partition in (0, 1):
                await wrote(client, who, "orders", b"a", partition=partition)
            assert await commit_offset(client, who, "g", "orders", 7) == "NONE"
            image = LEFT_BY[left](world.disk) if left in LEFT_BY else world.disk
        await asyncio.sleep(WEEK // 2)
        async with again(world, image, **ENABLED) as (_, client):
            assert await states(client) == {"t": "Ongoing"}
            new, ongoing = kept(await init(client, "t", **KEEP))
            assert ongoing == who
            assert new != who
            late = await produce(client, who, "orders", sent(who, 1, b"zombie"))
            assert late["error_code"] == "INVALID_PRODUCER_EPOCH"
            for old_commit in (True, False):
                late = await end(client, who, commit=old_commit)
                assert late["error_code"] == "PRODUCER_FENCED"
            after = await ended(client, new, commit=commit)
            for partition in (0, 1):
                found = await committed(client, "orders", partition=partition)
                assert found == [b"a"] * commit
                assert await ends(client, "orders", partition) == (2, 2)
            assert await committed_offset(client, "g", "orders") == ("NONE", 7 if commit else -1)
            await wrote(client, after, "orders", b"next")
            await ended(client, after, commit=True)
            assert (await committed(client, "orders"))[-1] == b"next"

    simulate(1, main)


def test_whoever_came_back_may_only_end_it() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", **TWO_PHASE)
        await wrote(client, who, "orders", b"a")
        new, _ = kept(await init(client, "t", **KEEP))
        for records in (sent(new, 0, b"b"), sent(new, 1, b"b")):
            answer = await produce(client, new, "orders", records)
            assert answer["error_code"] == "INVALID_TXN_STATE"
        await ended(client, new, commit=True)
        assert await committed(client, "orders") == [b"a"]

    play(script, **ENABLED)


def test_each_incarnation_fences_the_one_before_it_and_none_loses_the_transaction() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", **TWO_PHASE)
        await wrote(client, who, "orders", b"a")
        incarnations = [who]
        for _ in range(3):
            new, ongoing = kept(await init(client, "t", **KEEP))
            assert ongoing == who
            incarnations.append(new)
        assert len(set(incarnations)) == 4
        for old in incarnations[:-1]:
            assert (await end(client, old, commit=False))["error_code"] == "PRODUCER_FENCED"
        await ended(client, incarnations[-1], commit=True)
        assert await committed(client, "orders") == [b"a"]
        assert await ends(client, "orders") == (2, 2)

    play(script, **ENABLED)


def test_without_asking_to_keep_it_a_new_client_aborts_what_was_open() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", **TWO_PHASE)
        await wrote(client, who, "orders", b"a")
        answer = await init(client, "t", **TWO_PHASE)
        assert answer["error_code"] == "NONE", answer
        assert await ends(client, "orders") == (2, 2)
        assert await committed(client, "orders") == []

    play(script, **ENABLED)


def test_with_nothing_open_there_is_nothing_to_keep() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        who = await ready(client, "t", **TWO_PHASE)
        new, ongoing = kept(await init(client, "t", **KEEP))
        assert new == who.at(1)
        assert ongoing == Who("t", -1, -1)

    play(script, **ENABLED)


def test_a_repeated_request_to_keep_is_answered_with_the_same_identity_after_a_crash() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, **ENABLED) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client, "t", **TWO_PHASE)
            await wrote(client, who, "orders", b"a")
            first = kept(await init(client, "t", expected=who, **KEEP))
            image = LEFT_BY["power cut"](world.disk)
        async with again(world, image, **ENABLED) as (_, client):
            assert kept(await init(client, "t", expected=who, **KEEP)) == first
            await ended(client, first[0], commit=True)
            assert await committed(client, "orders") == [b"a"]

    simulate(1, main)
