"""Without syncs, after a cut that took the end of single logs: nothing stays open for ever, nothing
becomes visible that nobody committed, and no epoch is given out that a partition has seen."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from onceflow.broker.topics.internal_logs import TRANSACTIONS_TOPIC
from onceflow.records.batch import iter_stored
from onceflow.runtime.disk import Access
from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World, run as simulate
from tests.unit.broker.broker_under_test import RawClient, Running, batch, simulated_broker
from tests.unit.broker.txn.transactional_requests import (
    GENERATIONS,
    NEW,
    OLD,
    Generation,
    Who,
    again,
    commit_offset,
    committed,
    committed_offset,
    end,
    ended,
    ends,
    ensure_partition,
    killed,
    names_of,
    produce,
    ready,
    sent,
    states,
    wrote,
)

OS: dict[str, Any] = {
    "durability": "os",
    "transaction_state_log_num_partitions": 1,
    "offsets_topic_num_partitions": 1,
}
both = pytest.mark.parametrize("speaks", GENERATIONS.values(), ids=GENERATIONS)


def lose(disk: SimDisk, log: str, count: int) -> None:
    """Takes so many batches from the end of a log, as a cut that came before they were synced."""
    (path,) = (each for each in names_of(disk, ".log") if each.startswith(f"{log}."))
    file = disk.open(path, Access.WRITE)
    sizes = [len(stored.buffer) for stored in iter_stored(file.pread(0, file.size()))]
    file.truncate(sum(sizes[: len(sizes) - count]))


async def is_nowhere_open(running: Running) -> bool:
    return not any(
        partition.producers.open_transactions()
        for topic in running.server.node.topics.by_name.values()
        for partition in topic.partitions
    )


Script = Callable[[RawClient], Awaitable[Who]]
Check = Callable[[Running, RawClient, Who], Awaitable[None]]


def lost(script: Script, logs: Mapping[str, int], check: Check) -> None:
    """A script's world after a cut that took so many batches of each of these logs."""

    async def main(world: World) -> None:
        async with simulated_broker(world, **OS) as running:
            client = await running.client()
            await client.create("orders", 2)
            await ready(client, "first")  # so that the internal topics are there
            assert await commit_offset(client, await ready(client, "g"), "g", "orders", 0) == "NONE"
            await ready(client, "g")
            await ready(client, "g")
            who = await script(client)
            image = killed(world.disk)
        for log, count in logs.items():
            lose(image, log, count)
        async with again(world, image, **OS) as (running, client):
            await check(running, client, who)
            image = killed(image)
        async with again(world, image, host="third", **OS) as (running, client):
            await asyncio.sleep(0)
            assert await is_nowhere_open(running)

    simulate(1, main)


def committing(speaks: Generation) -> Script:
    """One committed transaction in both partitions."""

    async def script(client: RawClient) -> Who:
        who = await ready(client, "t")
        for partition in (0, 1):
            await wrote(client, who, "orders", b"a", partition=partition, speaks=speaks)
        await ended(client, who, commit=True, version=speaks.end)
        return who

    return script


STATE = f"{TRANSACTIONS_TOPIC}-0"


def test_a_lost_marker_is_written_again_as_it_was_decided_where_that_can_be_told() -> None:
    async def check(running: Running, client: RawClient, who: Who) -> None:
        for partition in (0, 1):
            assert await committed(client, "orders", partition=partition) == [b"a"]
            assert await ends(client, "orders", partition) == (2, 2)

    lost(committing(NEW), {"orders-1": 1}, check)


def test_with_the_older_protocol_it_cannot_be_told_and_is_aborted() -> None:
    async def check(running: Running, client: RawClient, who: Who) -> None:
        assert await committed(client, "orders") == [b"a"]
        assert await committed(client, "orders", partition=1) == []
        assert await ends(client, "orders", 1) == (2, 2)

    lost(committing(OLD), {"orders-1": 1}, check)


@both
@pytest.mark.parametrize("state_records", [1, 2, 3, 4])
@pytest.mark.parametrize("marker_in_1", [True, False])
def test_whatever_is_lost_of_the_coordinators_log_nothing_stays_open(
    speaks: Generation, state_records: int, marker_in_1: bool
) -> None:
    """COMPLETE; PREPARE too; that the transaction is open; that the id was ever known."""

    async def check(running: Running, client: RawClient, who: Who) -> None:
        await asyncio.sleep(61)  # what is known to be open may time out
        assert await is_nowhere_open(running)
        for partition in (0, 1):
            stable, high = await ends(client, "orders", partition)
            assert stable == high
        assert await committed(client, "orders") == [b"a"], "its marker was there"
        after = await ready(client, "t")
        if after.producer_id == who.producer_id:
            assert after.epoch > who.epoch + (speaks is NEW)
        late = await produce(client, who, "orders", sent(who, 1, b"z"), version=speaks.produce)
        assert late["error_code"] != "NONE"
        await wrote(client, after, "orders", b"b", speaks=speaks)
        await ended(client, after, commit=True, version=speaks.end)
        assert await committed(client, "orders") == [b"a", b"b"]

    logs = {STATE: state_records} if marker_in_1 else {STATE: state_records, "orders-1": 1}
    lost(committing(speaks), logs, check)


def test_a_decision_about_one_transaction_is_not_carried_out_on_the_next() -> None:
    """The log of the coordinator ends with a PREPARE, and the partition has gone on since: its open
    transaction is another one, which nobody has committed."""

    async def script(client: RawClient) -> Who:
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a")
        after = await ended(client, who, commit=True)
        await wrote(client, after, "orders", b"never committed")
        return after

    async def check(running: Running, client: RawClient, who: Who) -> None:
        assert await is_nowhere_open(running)
        assert await committed(client, "orders") == [b"a"]
        after = await ready(client, "t")
        assert after.epoch > who.epoch
        (seen,) = [
            each.epoch
            for producer_id, each in ensure_partition(running, "orders").producers.producers()
            if producer_id == who.producer_id
        ]
        assert who.epoch <= seen < after.epoch

    lost(script, {STATE: 2}, check)


@pytest.mark.parametrize("rounds", [1, 3])
def test_no_epoch_is_given_out_that_a_partition_has_seen(rounds: int) -> None:
    async def script(client: RawClient) -> Who:
        who = await ready(client, "t")
        for number in range(rounds):
            await wrote(client, who, "orders", b"%d" % number)
            who = await ended(client, who, commit=True)
        await wrote(client, who, "orders", b"open")
        return who

    async def check(running: Running, client: RawClient, who: Who) -> None:
        assert await is_nowhere_open(running)
        after = await ready(client, "t")
        assert after.producer_id != who.producer_id or after.epoch > who.epoch
        assert await committed(client, "orders") == [b"%d" % number for number in range(rounds)]
        zombie = await end(client, who, commit=True)
        assert zombie["error_code"] in ("PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING")

    for records in range(1, 3 * rounds + 3):
        lost(script, {STATE: records}, check)


def test_lost_records_of_a_committed_transaction_leave_the_coordinator_as_it_was() -> None:
    async def check(running: Running, client: RawClient, who: Who) -> None:
        assert (await states(client))["t"] == "CompleteCommit"
        assert await ends(client, "orders", 1) == (0, 0)
        assert await committed(client, "orders") == [b"a"]
        again_ended = await end(client, who, commit=True)
        assert again_ended["error_code"] == "NONE"

    lost(committing(NEW), {"orders-1": 2}, check)


def test_offsets_of_a_transaction_whose_marker_is_lost_are_decided_too() -> None:
    async def script(client: RawClient) -> Who:
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a")
        assert await commit_offset(client, who, "g", "orders", 7) == "NONE"
        await ended(client, who, commit=True)
        return who

    async def check(running: Running, client: RawClient, who: Who) -> None:
        assert await is_nowhere_open(running)
        assert await committed_offset(client, "g", "orders") == ("NONE", 7)

    lost(script, {"__consumer_offsets-0": 1}, check)


def test_every_combination_of_lost_ends_of_four_logs_starts_and_has_nothing_hanging() -> None:
    """A producer of the newer and one of the older protocol, interleaved, one left open."""

    async def script(client: RawClient) -> Who:
        new, old = await ready(client, "t"), await ready(client, "u")
        await wrote(client, new, "orders", b"n1")
        await wrote(client, old, "orders", b"o1", speaks=OLD)
        new = await ended(client, new, commit=True)
        await client.produce("orders", batch(b"plain"))
        await ended(client, old, commit=False, version=OLD.end)
        await wrote(client, new, "orders", b"n2", partition=1)
        await wrote(client, old, "orders", b"o2", partition=1, speaks=OLD)
        await ended(client, old, commit=True, version=OLD.end)
        return new

    async def check(running: Running, client: RawClient, who: Who) -> None:
        await asyncio.sleep(61)
        assert await is_nowhere_open(running)
        for partition in (0, 1):
            stable, high = await ends(client, "orders", partition)
            assert stable == high
        assert b"n2" not in await committed(client, "orders", partition=1)
        assert b"o1" not in await committed(client, "orders")
        for name in ("t", "u"):
            after = await ready(client, name)
            for partition in (0, 1):
                table = ensure_partition(running, "orders", partition).producers
                known = table.find(after.producer_id)
                assert known is None or known.epoch < after.epoch

    for state, first, second in itertools.product(range(0, 9, 2), (0, 3), range(0, 4, 2)):
        lost(script, {STATE: state, "orders-0": first, "orders-1": second}, check)
