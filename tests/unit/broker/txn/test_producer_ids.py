"""Producer ids: no restart gives one out twice, and the end of them is told clearly."""

from __future__ import annotations

import asyncio
import logging

import pytest

from onceflow.broker.topics.metadata_log import METADATA_LOG, producer_ids_record
from onceflow.log.urgency import Purpose
from onceflow.producers.ids import BLOCK_SIZE, LAST_PRODUCER_ID, Block
from onceflow.records.plain import write_records
from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import NOW_MS, RawClient, Running, play, simulated_broker
from tests.unit.broker.held_journal import HeldJournal
from tests.unit.broker.txn.transactional_requests import LEFT_BY, Who, again, init, ready

RESTARTS = 50
"""Of each kind."""


async def given(client: RawClient, number: int) -> list[int]:
    """So many producers: without a transactional id, and with one of their own."""
    names = [None, f"t-{number}"]
    return [(await ready(client, name)).producer_id for name in names]


def test_no_orderly_restart_gives_an_id_out_twice() -> None:
    async def main(world: World) -> list[int]:
        found: list[int] = []
        for number in range(RESTARTS):
            async with again(world, world.disk, host=f"broker-{number}") as (_, client):
                found += await given(client, number)
        return found

    found, _ = simulate(1, main)
    assert len(set(found)) == 2 * RESTARTS
    assert found == sorted(found)


@pytest.mark.parametrize("left", LEFT_BY)
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_no_crash_gives_an_id_out_twice(left: str, durability: str) -> None:
    """Claims of ids are synced in every mode."""

    async def main(world: World) -> list[int]:
        found: list[int] = []
        disk = SimDisk()
        for number in range(RESTARTS):
            settings = {"host": f"broker-{number}", "durability": durability}
            async with again(world, disk, **settings) as (_, client):
                found += await given(client, number)
                image = LEFT_BY[left](disk)
            disk = image
        return found

    found, _ = simulate(1, main)
    assert len(set(found)) == 2 * RESTARTS


def test_a_block_is_claimed_when_the_one_before_it_is_used_up() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        log = running.server.node.store.logs[METADATA_LOG]
        ids, ends = [], []
        for _ in range(BLOCK_SIZE + 1):
            ids.append((await ready(client)).producer_id)
            ends.append(log.end_offset)
        assert ids == list(range(ids[0], ids[0] + BLOCK_SIZE + 1))
        assert ends[0] == ends[-2], "one claim for all of a block"
        assert ends[-1] == ends[0] + 1

    play(script)


def test_an_id_is_told_only_when_its_claim_is_durable() -> None:
    async def main(world: World) -> None:
        held = HeldJournal(world.background)
        async with simulated_broker(world, background=held) as running:
            client, other = await running.client(), await running.client()
            held.is_holding = True
            fields = {"transactional_id": None, "transaction_timeout": 1000}
            for each in (client, other):
                each.send(ApiKey.INIT_PRODUCER_ID, 2, fields)
            await asyncio.sleep(5)
            assert not client.frames
            assert not other.frames, "the second id comes from the same claim"
            held.release()
            answers = [await each.receive(ApiKey.INIT_PRODUCER_ID, 2) for each in (client, other)]
            assert len({each["producer_id"] for each in answers}) == 2

    simulate(1, main)


def test_the_end_of_all_ids_is_a_clear_error(caplog: pytest.LogCaptureFixture) -> None:
    left = 3

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            start = (await ready(client)).producer_id + BLOCK_SIZE
            block = Block(start, LAST_PRODUCER_ID + 1 - left - start)
            store = running.server.node.store
            log = store.logs[METADATA_LOG]
            batch = write_records([producer_ids_record(block)], NOW_MS).assign(log.end_offset, 0)
            store.append(log, batch, purpose=Purpose.METADATA)
        async with again(world, world.disk) as (running, client):
            ids = [(await ready(client, name)).producer_id for name in (None, "t", None)]
            assert ids == [LAST_PRODUCER_ID - 2, LAST_PRODUCER_ID - 1, LAST_PRODUCER_ID]
            for name in (None, "another"):
                answer = await init(client, name)
                assert answer["error_code"] == "UNKNOWN_SERVER_ERROR"
                assert answer["producer_id"] == -1
            known = await ready(client, "t")
            assert known == Who("t", LAST_PRODUCER_ID - 1, 1), "who has an id goes on"
            assert not running.server.failed.done()

    with caplog.at_level(logging.WARNING):
        simulate(1, main)
    lines = [
        each.getMessage() for each in caplog.records if "INIT_PRODUCER_ID" in each.getMessage()
    ]
    assert len(lines) == 2
    assert all("all producer ids" in line for line in lines)
