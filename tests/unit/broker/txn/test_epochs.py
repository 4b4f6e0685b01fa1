"""Epochs and identities of transactional producers: bugs that other brokers had with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.testing.world import World, run as simulate
from onceflow.txn.state import TransactionMetadata, TransactionState
from tests.unit.broker.broker_under_test import NOW_MS, RawClient, simulated_broker
from tests.unit.broker.txn.transactional_requests import (
    GENERATIONS,
    LEFT_BY,
    Generation,
    Who,
    again,
    committed,
    end,
    ended,
    ends,
    init,
    killed,
    markers,
    planted,
    produce,
    ready,
    sent,
    wrote,
)

both = pytest.mark.parametrize("speaks", GENERATIONS.values(), ids=GENERATIONS)


@pytest.mark.parametrize("left", LEFT_BY)
def test_kafka_20357_20310_a_repeated_init_is_not_fenced_after_a_restart(left: str) -> None:
    """The answer is lost with the broker: whoever asks again is told the same identity."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            who = await ready(client, "t")
            given = await ready(client, "t", expected=who)
            assert given == who.at(1)
            image = LEFT_BY[left](world.disk)
            async with again(world, image) as (_, client):
                assert await ready(client, "t", expected=who) == given
                assert await ready(client, "t", expected=who) == given, "and again"
                fenced = await init(client, "t", expected=who.at(7))
                assert fenced["error_code"] == "PRODUCER_FENCED"

    simulate(1, main)


def test_kafka_20310_a_repeated_init_that_gave_a_new_producer_id_is_not_fenced_either() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            who = await ready(client, "t")
            await planted(running, _idle(who, 32766))
            image = killed(world.disk)
        async with again(world, image) as (running, client):
            last = who.at(32766)
            given = await ready(client, "t", expected=last)
            assert given.epoch == 0
            assert given.producer_id != who.producer_id
            image = killed(image)
        async with again(world, image, host="third") as (_, client):
            assert await ready(client, "t", expected=last) == given

    simulate(1, main)


def _idle(who: Who, epoch: int) -> TransactionMetadata:
    return TransactionMetadata("t", who.producer_id, epoch, 60_000, TransactionState.EMPTY, NOW_MS)


def play_at_epoch(epoch: int, script: Any) -> None:
    """Runs a script with a producer whose next epoch is this one."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            first = await ready(client, "t")
            await planted(running, _idle(first, epoch - 1))
            image = killed(world.disk)
        async with again(world, image) as (_, client):
            who = await ready(client, "t")
            assert who == first.at(epoch)
            await script(client, who)

    simulate(1, main)


@pytest.mark.parametrize("commit", [True, False])
def test_kafka_18660_the_last_epoch_is_followed_by_a_new_producer_id(commit: bool) -> None:
    async def script(client: RawClient, who: Who) -> None:
        await wrote(client, who, "orders", b"a")
        after = await ended(client, who, commit=commit)
        assert after.producer_id != who.producer_id
        assert after.epoch == 0
        assert await ended(client, who, commit=commit) == after, "the repeat gets the same answer"
        ((_, marker),) = await markers(client, "orders")
        assert (marker.producer_id, marker.producer_epoch) == (who.producer_id, 32767)
        late = await produce(client, who, "orders", sent(who, 1, b"late"))
        assert late["error_code"] in ("INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING")
        await wrote(client, after, "orders", b"b")
        await ended(client, after, commit=True)
        assert await committed(client, "orders") == [b"a"] * commit + [b"b"]

    play_at_epoch(32766, script)


@both
def test_kafka_20090_no_epoch_is_stuck_at_the_largest(speaks: Generation) -> None:
    """A producer in its last epoch that is fenced: the next one has a new id, and no trouble."""

    async def script(client: RawClient, who: Who) -> None:
        await wrote(client, who, "orders", b"a", speaks=speaks)
        after = await ready(client, "t")
        assert after.producer_id != who.producer_id
        late = await end(client, who, commit=True, version=speaks.end)
        assert late["error_code"] in ("PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING")
        await wrote(client, after, "orders", b"b", speaks=speaks)
        await ended(client, after, commit=True, version=speaks.end)
        assert await committed(client, "orders") == [b"b"]
        assert await ends(client, "orders") == (4, 4)

    play_at_epoch(32766, script)


@both
def test_kafka_20090_a_timeout_in_the_last_epoch_gives_a_new_producer_id(
    speaks: Generation,
) -> None:
    async def script(client: RawClient, who: Who) -> None:
        await wrote(client, who, "orders", b"a", speaks=speaks)
        await asyncio.sleep(61)
        assert await ends(client, "orders") == (2, 2)
        after = await ready(client, "t")
        assert after.producer_id != who.producer_id
        assert after.epoch <= 1
        await wrote(client, after, "orders", b"b", speaks=speaks)
        await ended(client, after, commit=True, version=speaks.end)
        assert await committed(client, "orders") == [b"b"]

    play_at_epoch(32766, script)


@both
def test_a_takeover_is_done_when_it_is_answered_the_first_time(speaks: Generation) -> None:
    """Apache Kafka aborts what is open, and tells the new owner to ask again: the old one may come
    back in between and begin another transaction, as often as it likes."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            old = await ready(client, "t")
            await wrote(client, old, "orders", b"a", speaks=speaks)
            taken = await init(client, "t")
            assert taken["error_code"] == "NONE", taken
            assert await ends(client, "orders") == (2, 2), "the old transaction is aborted"
            refused = await end(client, old, commit=False, version=speaks.end)
            assert refused["error_code"] in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
            new = Who("t", taken["producer_id"], taken["producer_epoch"])
            await wrote(client, new, "orders", b"b", speaks=speaks)
            await ended(client, new, commit=True, version=speaks.end)
            assert await committed(client, "orders") == [b"b"]

    simulate(1, main)


@pytest.mark.parametrize("left", LEFT_BY)
def test_a_takeover_that_crashed_is_asked_for_again(left: str) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders")
            old = await ready(client, "t")
            await wrote(client, old, "orders", b"a")
            first = await init(client, "t", expected=old)
            image = LEFT_BY[left](world.disk)
            async with again(world, image) as (_, client):
                repeated = await init(client, "t", expected=old)
                assert repeated == first
                assert await ends(client, "orders") == (2, 2)

    simulate(1, main)
