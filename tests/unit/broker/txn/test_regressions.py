"""Bugs that other brokers had in transactions, each with one test that shows it is not here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.errors import DiskFull
from onceflow.testing.disk import SyncWrite
from onceflow.testing.world import World, run as simulate
from onceflow.txn.records import encode_key, encode_value
from onceflow.txn.state import TransactionMetadata, TransactionState
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    NOW_MS,
    RawClient,
    Running,
    play,
    produced,
    simulated_broker,
)
from tests.unit.broker.txn.transactional_requests import (
    GENERATIONS,
    LEFT_BY,
    NEW,
    OLD,
    Generation,
    Who,
    add,
    again,
    committed,
    end,
    end_fields,
    ended,
    ends,
    killed,
    markers,
    planted,
    produce,
    ready,
    send_produce,
    sent,
    states,
    wrote,
)

both = pytest.mark.parametrize("speaks", GENERATIONS.values(), ids=GENERATIONS)


@pytest.mark.parametrize("late_commit", [True, False])
def test_kafka_17754_a_delayed_end_does_not_end_a_later_transaction(late_commit: bool) -> None:
    """The first EndTxn is delayed, its retry succeeds, the next transaction begins, and then the
    first one arrives. With an epoch for each transaction it can be told apart."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        first = await ready(client, "t")
        await wrote(client, first, "orders", b"a")
        second = await ended(client, first, commit=late_commit)
        await wrote(client, second, "orders", b"b")
        delayed = await end(client, first, commit=late_commit)
        assert delayed["error_code"] == "PRODUCER_FENCED"
        assert await states(client) == {"t": "Ongoing"}
        await wrote(client, second, "orders", b"c", sequence=1)
        await ended(client, second, commit=True)
        assert await committed(client, "orders") == [b"a"] * late_commit + [b"b", b"c"]

    play(script)


@both
@pytest.mark.parametrize("commit", [True, False])
def test_kafka_14053_14402_a_late_produce_after_the_marker_does_not_hang_readers(
    speaks: Generation, commit: bool
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a", speaks=speaks)
        await ended(client, who, commit=commit, version=speaks.end)
        for partition in (0, 1):  # written in the transaction, and never part of it
            records = sent(who, 1 - partition, b"late")
            late = await produce(
                client, who, "orders", records, partition=partition, version=speaks.produce
            )
            expected = "TRANSACTION_ABORTABLE" if speaks is OLD else "INVALID_PRODUCER_EPOCH"
            assert late["error_code"] == expected
            assert late["base_offset"] == -1
            stable, high = await ends(client, "orders", partition)
            assert stable == high

    play(script)


def test_kafka_14402_older_clients_are_told_in_a_code_that_they_know() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        codes = [
            (await produce(client, who, "orders", sent(who, 0, b"a"), version=version))[
                "error_code"
            ]
            for version in (3, 10, 11)
        ]
        assert codes == ["INVALID_TXN_STATE", "INVALID_TXN_STATE", "TRANSACTION_ABORTABLE"]
        assert await ends(client, "orders") == (0, 0)

    play(script)


@both
def test_kafka_20785_a_commit_that_comes_after_the_timeout_is_not_fatal(speaks: Generation) -> None:
    """The coordinator has aborted: a client that wants to commit is told that it is fenced, and not
    that it is in a state that cannot be; one that aborts gets on at once."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t", timeout_ms=1000)
        await wrote(client, who, "orders", b"a", speaks=speaks)
        await asyncio.sleep(2)
        late = await end(client, who, commit=True, version=speaks.end)
        assert late["error_code"] == "PRODUCER_FENCED"
        if speaks is NEW:
            aborted = await ended(client, who, commit=False)
            assert aborted.epoch > who.epoch
            await wrote(client, aborted, "orders", b"b")
            await ended(client, aborted, commit=True)
            assert await committed(client, "orders") == [b"b"]
        after = await ready(client, "t")
        assert after.epoch > who.epoch

    play(script)


@both
def test_kafka_19690_a_stale_epoch_is_told_before_that_no_transaction_is_open(
    speaks: Generation,
) -> None:
    """INVALID_PRODUCER_EPOCH, after which a client can go on, and not INVALID_TXN_STATE."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        who = await ready(client, "t", timeout_ms=1000)
        await wrote(client, who, "orders", b"a", speaks=speaks)
        await asyncio.sleep(2)
        for partition in (0, 1):
            late = await produce(
                client,
                who,
                "orders",
                sent(who, 1, b"b"),
                partition=partition,
                version=speaks.produce,
            )
            assert late["error_code"] == "INVALID_PRODUCER_EPOCH"

    play(script)


def test_kafka_18575_the_next_transaction_does_not_join_the_one_whose_marker_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a")
        real = running.server.node.markers.write

        def full(*args: Any, **options: Any) -> Any:
            raise DiskFull("no room for a marker")

        monkeypatch.setattr(running.server.node.markers, "write", full)
        after = await ended(client, who, commit=False)
        early = await produce(client, after, "orders", sent(after, 0, b"b"))
        assert early["error_code"] == "CONCURRENT_TRANSACTIONS"
        assert await add(client, after, "orders", 0) == ["CONCURRENT_TRANSACTIONS"]
        older = await produce(client, after, "orders", sent(after, 0, b"b"), version=11)
        assert older["error_code"] == "NOT_ENOUGH_REPLICAS", "which older clients try again after"
        assert await ends(client, "orders") == (0, 1)
        monkeypatch.setattr(running.server.node.markers, "write", real)
        await asyncio.sleep(1)
        await wrote(client, after, "orders", b"b")
        await ended(client, after, commit=True)
        assert await committed(client, "orders") == [b"b"]

    play(script)


async def mark(client: RawClient, who: Who, *, coordinator_epoch: int, commit: bool = False) -> str:
    """What WriteTxnMarkers answers for the one partition."""
    marker = {
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "transaction_result": commit,
        "topics": [{"name": "orders", "partition_indexes": [0]}],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": 0,
    }
    answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [marker]})
    return str(answer["markers"][0]["topics"][0]["partitions"][0]["error_code"])


def test_kafka_9144_an_old_coordinator_is_refused_but_its_markers_in_the_log_are_not() -> None:
    """The time of a marker counts: a producer that only had markers lately is not forgotten."""

    async def main(world: World) -> None:
        settings: dict[str, Any] = {
            "producer_id_expiration_ms": 60_000,
            "producer_id_expiration_check_interval_ms": 1_000,
        }
        async with simulated_broker(world, **settings) as running:
            client = await running.client()
            await client.create("orders")
            who = await ready(client)
            old = world.clock.wall_ms() - 59_000
            await produce(client, who, "orders", sent(who, 0, b"a", timestamp=old))
            assert await mark(client, who, coordinator_epoch=5) == "NONE"
            await asyncio.sleep(30)
            code = await mark(client, who, coordinator_epoch=4)
            assert code == "TRANSACTION_COORDINATOR_FENCED", "still known"
            await asyncio.sleep(40)
            assert await mark(client, who, coordinator_epoch=4) == "NONE", "forgotten by now"
            image = killed(world.disk)
        async with again(world, image) as (_, client):
            assert await ends(client, "orders") == (3, 3)
            assert await mark(client, who, coordinator_epoch=3) == "TRANSACTION_COORDINATOR_FENCED"

    simulate(1, main)


def test_kafka_13574_an_error_that_hides_a_write_is_put_right_by_the_repeat() -> None:
    """The disk fails while it syncs: nobody knows whether the batch, or the decision, is on it.
    Whatever is, asking again after the restart gives one record and one outcome."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client, other = await running.client(), await running.client()
            await client.create("orders")
            plain, who = await ready(client), await ready(client, "t")
            await wrote(client, who, "orders", b"in")
            world.disk.fail = lambda op: isinstance(op, SyncWrite)
            send_produce(client, plain, "orders", sent(plain, 0, b"out"))
            other.send(ApiKey.END_TXN, 5, end_fields(who, commit=True))
            await running.server.failed
            answer = produced(await client.receive(ApiKey.PRODUCE, 12))
            assert answer["error_code"] == "KAFKA_STORAGE_ERROR"
            images = [LEFT_BY[left](world.disk) for left in LEFT_BY]
        await other.closed()
        assert not other.frames, "no code says that the outcome is not known"
        for number, image in enumerate(images):
            async with again(world, image, host=f"again-{number}") as (_, client):
                repeated = await produce(client, plain, "orders", sent(plain, 0, b"out"))
                assert (repeated["error_code"], repeated["base_offset"]) == ("NONE", 1)
                await ended(client, who, commit=True)
                assert await committed(client, "orders") == [b"in", b"out"]
                assert await ends(client, "orders") == (3, 3)

    simulate(1, main)


@pytest.mark.parametrize(("add_version", "end_version"), [(0, 1), (3, 4)])
def test_librdkafka_4849_an_abort_right_behind_the_first_added_partition(
    add_version: int, end_version: int
) -> None:
    """Both on their way at once, on one connection: the requests are done in their order."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        fields = {
            "v3_and_below_transactional_id": "t",
            "v3_and_below_producer_id": who.producer_id,
            "v3_and_below_producer_epoch": who.epoch,
            "v3_and_below_topics": [{"name": "orders", "partitions": [0]}],
        }
        client.send(ApiKey.ADD_PARTITIONS_TO_TXN, add_version, fields)
        client.send(ApiKey.END_TXN, end_version, end_fields(who, commit=False))
        added = await client.receive(ApiKey.ADD_PARTITIONS_TO_TXN, add_version)
        (row,) = added["results_by_topic_v3_and_below"]
        assert row["results_by_partition"][0]["partition_error_code"] == "NONE"
        aborted = await client.receive(ApiKey.END_TXN, end_version)
        assert aborted["error_code"] == "NONE"
        assert await states(client) == {"t": "CompleteAbort"}

    play(script)


@pytest.mark.parametrize("commit", [True, False])
@both
def test_an_end_that_is_repeated_is_answered_as_the_first_one(
    speaks: Generation, commit: bool
) -> None:
    """Redpanda 21.10 said INVALID_TXN_STATE to a repeated commit, which clients took for a no."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        await wrote(client, who, "orders", b"a", speaks=speaks)
        first = await end(client, who, commit=commit, version=speaks.end)
        assert await end(client, who, commit=commit, version=speaks.end) == first
        other = await end(client, who, commit=not commit, version=speaks.end)
        assert other["error_code"] in ("INVALID_TXN_STATE", "PRODUCER_FENCED")
        assert await committed(client, "orders") == [b"a"] * commit
        assert len(await markers(client, "orders")) == 1

    play(script)


def test_a_decision_found_without_its_markers_is_carried_out_and_not_another() -> None:
    """What a crash between PREPARE and the markers leaves, for a commit and for an abort."""

    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("orders", 2)
            for name, state in (
                ("c", TransactionState.PREPARE_COMMIT),
                ("a", TransactionState.PREPARE_ABORT),
            ):
                who = await ready(client, name)
                for partition in (0, 1):
                    await wrote(client, who, "orders", name.encode(), partition=partition)
                places = frozenset(TopicPartition("orders", index) for index in (0, 1))
                prepare = TransactionMetadata(
                    name,
                    who.producer_id,
                    who.epoch + 1,
                    60_000,
                    state,
                    NOW_MS,
                    partitions=places,
                    started_ms=NOW_MS,
                    last_epoch=who.epoch,
                    client_version=2,
                )
                await planted(running, prepare)
            image = killed(world.disk)
        async with again(world, image) as (_, client):
            assert await states(client) == {"c": "CompleteCommit", "a": "CompleteAbort"}
            for partition in (0, 1):
                assert await committed(client, "orders", partition=partition) == [b"c"]
                assert await ends(client, "orders", partition) == (4, 4)

    simulate(1, main)


def test_records_of_transactions_are_those_of_kafka() -> None:
    """What `planted` writes is what the coordinator itself writes."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        who = await ready(client, "t")
        found = running.server.node.transactions.find("t")
        assert found is not None
        assert encode_key("t") == b"\0\0\0\1t"
        assert encode_value(found)[:2] == b"\0\1"
        assert (found.producer_id, found.epoch) == who[1:]

    play(script)
