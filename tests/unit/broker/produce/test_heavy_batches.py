"""Batches of which a few bytes stand for many: the loop goes on, order is kept, and there is an
end to what one request may ask for."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onceflow.broker.produce import heavy_batches as batch_checks
from onceflow.broker.topics.partition import HostedPartition
from onceflow.records.batch import Codec
from onceflow.records.columns import encode
from onceflow.records.compression import compress
from onceflow.runtime.background import JobLane
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    NOW_MS,
    RawClient,
    Running,
    batch,
    broker,
    play,
    produce_fields,
    produced,
    round_trip,
    run,
    simulated_broker,
    values_in,
)
from tests.unit.broker.held_journal import HeldJournal
from tests.unit.broker.produce.odd_batches import MB, bomb, with_section
from tests.unit.broker.txn.transactional_requests import ready, send_produce


class HeldChecks(HeldJournal):
    """Lets everything happen but checks in the background, until `release`."""

    lane = JobLane.CHECK

    def check(self) -> None:
        """Checks what is held; it is not told yet."""
        for job, _ in self._held:
            for _ in job:
                pass

    async def held_one(self) -> None:
        """Returns when there is one."""
        while not self._held:
            await asyncio.sleep(0.001)
        assert len(self._held) == 1


def play_held(script: Callable[[HeldChecks, Running, RawClient], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        held = HeldChecks(world.background)
        async with simulated_broker(world, background=held) as running:
            await script(held, running, await running.client())
            held.release()

    simulate(7, main)


def many(topic: str, rows: list[tuple[int, bytes]]) -> dict[str, Any]:
    parts = [{"index": index, "records": records} for index, records in rows]
    topics = [{"name": topic, "partition_data": parts}]
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}


def codes(answer: Any) -> dict[int, str]:
    return {
        each["index"]: each["error_code"]
        for topic in answer["responses"]
        for each in topic["partition_responses"]
    }


# --- named twice ---------------------------------------------------------------------------------


def test_a_partition_that_is_named_twice_is_refused_and_the_others_are_written() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 3)
        rows = [(0, batch(b"a")), (1, batch(b"b")), (0, batch(b"c")), (2, batch(b"d"))]
        answer = await client.ask(ApiKey.PRODUCE, 9, many("orders", rows))
        assert codes(answer) == {0: "INVALID_REQUEST", 1: "NONE", 2: "NONE"}
        fields = many("orders", [(1, batch(b"e"))])
        fields["topic_data"] *= 2
        answer = await client.ask(ApiKey.PRODUCE, 9, fields)
        assert codes(answer) == {1: "INVALID_REQUEST"}
        assert (await client.fetch("orders", 0))["records"] == b""

    play(script)


def test_with_acks_0_it_costs_the_connection() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        fields = many("orders", [(0, batch(b"a"))] * 2) | {"acks": 0}
        client.send(ApiKey.PRODUCE, 9, fields, answered=False)
        await client.closed()

    play(script)


# --- away from the loop --------------------------------------------------------------------------


def test_a_batch_that_grows_is_checked_while_others_are_served() -> None:
    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders")
        other = await running.client()
        held.is_holding = True
        client.send(ApiKey.PRODUCE, 9, produce_fields("orders", bomb()))
        await held.held_one()
        assert (await other.produce("orders", batch(b"small")))["base_offset"] == 0
        held.release()
        assert produced(await client.receive(ApiKey.PRODUCE, 9))["base_offset"] == 1

    play_held(script)


def test_what_the_same_client_sends_behind_it_waits() -> None:
    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders")
        other = await running.client()
        held.is_holding = True
        for records in (batch(b"first"), bomb(), batch(b"third"), bomb(), batch(b"fifth")):
            client.send(ApiKey.PRODUCE, 9, produce_fields("orders", records))
        client.send(ApiKey.API_VERSIONS, 0, {})
        assert produced(await client.receive(ApiKey.PRODUCE, 9))["base_offset"] == 0
        await held.held_one()
        await asyncio.sleep(1)
        assert (await other.list_offset("orders", -1))["offset"] == 1
        held.release()
        answers = [produced(await client.receive(ApiKey.PRODUCE, 9)) for _ in range(4)]
        assert [each["base_offset"] for each in answers] == [1, 2, 3, 4]
        await client.receive(ApiKey.API_VERSIONS, 0)

    play_held(script)


def test_sequences_are_judged_in_the_order_in_which_they_came() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client)
        batches = [bomb(size * MB, who=who, sequence=at) for at, size in enumerate((2, 0, 3, 1, 2))]
        for records in (*batches, *batches):
            send_produce(client, who, "orders", records)
        answers = [produced(await client.receive(ApiKey.PRODUCE, 12)) for _ in range(10)]
        assert [each["error_code"] for each in answers] == ["NONE"] * 10
        assert [each["base_offset"] for each in answers] == [*range(5), *range(5)]
        assert (await client.list_offset("orders", -1))["offset"] == 5

    play(script)


def test_a_request_is_answered_as_a_whole_also_when_only_some_of_it_is_heavy() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 4)
        damaged = bytearray(bomb())
        damaged[-1] ^= 1
        rows = [(3, bomb()), (0, batch(b"a")), (9, bomb()), (1, bytes(damaged)), (2, bomb())]
        answer = await client.ask(ApiKey.PRODUCE, 9, many("orders", rows))
        wanted = {3: "NONE", 0: "NONE", 9: "UNKNOWN_TOPIC_OR_PARTITION", 1: "CORRUPT_MESSAGE"}
        assert codes(answer) == wanted | {2: "NONE"}
        assert [each["index"] for each in answer["responses"][0]["partition_responses"]] == [
            index for index, _ in rows
        ]

    play(script)


def test_acks_0_goes_on_behind_a_heavy_batch_or_hangs_up() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        client.send(ApiKey.PRODUCE, 9, produce_fields("orders", bomb(), acks=0), answered=False)
        assert (await client.produce("orders", batch(b"a")))["base_offset"] == 1
        too_much = produce_fields("orders", bomb(65 * MB), acks=0)
        client.send(ApiKey.PRODUCE, 9, too_much, answered=False)
        await client.closed()

    play(script)


def test_a_client_may_go_before_its_batch_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders")
        other = await running.client()
        held.is_holding = True
        client.send(ApiKey.PRODUCE, 9, produce_fields("orders", bomb()))
        client.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(b"behind it")))
        await held.held_one()
        client.close()
        await asyncio.sleep(1)
        held.release()
        await asyncio.sleep(1)
        assert (await other.list_offset("orders", -1))["offset"] >= 1

    play_held(script)
    assert "internal error" not in caplog.text


def test_a_topic_that_is_another_one_by_then_is_not_written_to() -> None:
    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders")
        other = await running.client()
        held.is_holding = True
        client.send(ApiKey.PRODUCE, 9, produce_fields("orders", bomb()))
        await held.held_one()
        gone = {"topics": [{"name": "orders", "topic_id": None}], "timeout": 1000}
        await other.ask(ApiKey.DELETE_TOPICS, 6, gone)
        await other.create("orders")
        held.release()
        answer = produced(await client.receive(ApiKey.PRODUCE, 9))
        assert answer["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        assert (await other.list_offset("orders", -1))["offset"] == 0

    play_held(script)


def test_a_config_that_was_altered_while_a_batch_was_checked_is_not_passed_over() -> None:
    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders")
        other = await running.client("other")
        held.is_holding = True
        client.send(ApiKey.PRODUCE, 9, produce_fields("orders", bomb()))
        await held.held_one()
        held.check()
        smaller = {"name": "max.message.bytes", "config_operation": 0, "value": "100"}
        resource = {"resource_type": 2, "resource_name": "orders", "configs": [smaller]}
        fields = {"resources": [resource], "validate_only": False}
        answer = await other.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
        assert answer["responses"][0]["error_code"] == "NONE"
        held.release()
        answer = produced(await client.receive(ApiKey.PRODUCE, 9))
        assert answer["error_code"] == "NOT_ENOUGH_REPLICAS"
        assert "altered" in answer["error_message"]
        assert (await client.produce("orders", bomb()))["error_code"] == "MESSAGE_TOO_LARGE"

    play_held(script)


def test_a_request_is_not_kept_while_a_part_of_it_is_checked() -> None:
    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        large = 6 * MB
        held.is_holding = True
        gc.collect()
        tracemalloc.start()
        try:
            client.send(ApiKey.PRODUCE, 9, many("orders", [(0, bytes(large)), (1, bomb())]))
            await held.held_one()
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < large
        finally:
            tracemalloc.stop()

    play_held(script)


def test_a_defect_after_a_check_costs_the_connection_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError("a defect")

    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders")
        other = await running.client("other")
        with monkeypatch.context() as patch:
            patch.setattr(HostedPartition, "append", broken)
            with pytest.raises(ConnectionError):
                await client.produce("orders", bomb())
        assert (await other.produce("orders", bomb()))["error_code"] == "NONE"

    play_held(script)


def test_brokers_in_threads_of_one_process_decompress_into_memory_of_their_own(
    tmp_path: Path,
) -> None:
    """Else each takes the records of the other for its own now and then."""
    refused: list[str] = []

    def send(at: Path, stamp: int) -> None:
        async def main() -> None:
            async with broker(at) as running:
                client = await running.client()
                await client.create("orders")
                rows = pa.record_batch(
                    {
                        "value": pa.array([b"v" * 500] * 1900, pa.binary()),
                        "timestamp": pa.array([NOW_MS] + [stamp] * 1899, pa.timestamp("ms")),
                    }
                )
                data = bytes(encode(rows, codec=Codec.GZIP).buffer)
                for _ in range(100):
                    answer = await client.produce("orders", data)
                    if answer["error_code"] != "NONE":
                        refused.append(answer["error_message"])

        run(main)

    threads = [
        threading.Thread(target=send, args=(tmp_path / str(number), NOW_MS + number))
        for number in range(1, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not refused


def test_a_topics_own_codec_is_applied_away_from_the_loop_too() -> None:
    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders", compression_type="gzip")
        other = await running.client()
        await other.produce("orders", batch(b"small"))
        held.is_holding = True
        client.send(ApiKey.PRODUCE, 9, produce_fields("orders", batch(bytes(100_000))))
        await held.held_one()
        assert (await other.list_offset("orders", -1))["offset"] == 1
        held.release()
        assert produced(await client.receive(ApiKey.PRODUCE, 9))["error_code"] == "NONE"
        assert values_in((await client.fetch("orders", 1))["records"]) == [(1, bytes(100_000))]

    play_held(script)


def test_what_the_loop_compresses_of_one_request_has_an_end() -> None:
    """Each of the batches is small, and all of them together are not."""
    many_batches = 300

    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders", many_batches, compression_type="gzip")
        other = await running.client()
        held.is_holding = True
        rows = [(index, batch(b"small")) for index in range(many_batches)]
        client.send(ApiKey.PRODUCE, 9, many("orders", rows))
        await held.held_one()
        ends = [
            (await other.list_offset("orders", -1, partition_index=index))["offset"]
            for index in range(20)
        ]
        assert 0 < sum(ends) < 20, "building a batch anew takes a while, however small it is"
        held.release()
        answer = codes(await client.receive(ApiKey.PRODUCE, 9))
        assert answer == dict.fromkeys(range(many_batches), "NONE")

    play_held(script)


def test_what_is_compressed_of_one_request_is_counted_together() -> None:
    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders", 3, compression_type="gzip")
        held.is_holding = True
        rows = [(index, batch(bytes(30_000))) for index in range(3)]
        client.send(ApiKey.PRODUCE, 9, many("orders", rows))
        await held.held_one()
        held.release()
        assert set(codes(await client.receive(ApiKey.PRODUCE, 9)).values()) == {"NONE"}

    play_held(script)


def test_damage_that_shows_only_after_decompression_is_paid_for() -> None:
    """Else a request could have as much decompressed as it has batches."""
    damaged = with_section(bytes(compress(Codec.ZSTD, bytes(600 << 10))), Codec.ZSTD)

    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders", 3)
        held.is_holding = True
        rows = [(index, damaged) for index in range(3)]
        client.send(ApiKey.PRODUCE, 9, many("orders", rows))
        await held.held_one()
        held.release()
        answer = codes(await client.receive(ApiKey.PRODUCE, 9))
        assert set(answer.values()) == {"INVALID_RECORD"}

    play_held(script)


def test_a_broker_that_stops_while_it_checks_stops_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            await client.create("orders", 8)
            rows = [(index, bomb(30 * MB)) for index in range(8)]
            client.send(ApiKey.PRODUCE, 9, many("orders", rows))
            await round_trip(await running.client())

    run(main)


# --- an end to it --------------------------------------------------------------------------------


def test_what_one_request_may_have_decompressed_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_checks, "REQUEST_BYTES", 7 * MB)

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 5)
        rows = [(index, bomb()) for index in range(4)] + [(4, batch(b"a"))]
        answer = await client.ask(ApiKey.PRODUCE, 9, many("orders", rows))
        again = "NOT_ENOUGH_REPLICAS"
        assert codes(answer) == {0: "NONE", 1: "NONE", 2: "NONE", 3: again, 4: "NONE"}
        answer = await client.ask(ApiKey.PRODUCE, 9, many("orders", rows[3:4]))
        assert codes(answer) == {3: "NONE"}

    play(script)


def test_one_batch_that_is_too_large_is_so_wherever_it_is_checked() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 2)
        answer = await client.ask(
            ApiKey.PRODUCE, 9, many("orders", [(0, bomb(65 * MB)), (1, bomb())])
        )
        assert codes(answer) == {0: "MESSAGE_TOO_LARGE", 1: "NONE"}

    play(script)


def test_what_waits_to_be_checked_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_checks, "WAITING_BYTES", 3 * len(bomb()))

    async def script(held: HeldChecks, running: Running, client: RawClient) -> None:
        await client.create("orders")
        held.is_holding = True
        clients = [await running.client() for _ in range(5)]
        for each in clients:
            each.send(ApiKey.PRODUCE, 9, produce_fields("orders", bomb()))
            await asyncio.sleep(1)
        for each in clients[3:]:
            answer = produced(await each.receive(ApiKey.PRODUCE, 9))
            assert answer["error_code"] == "NOT_ENOUGH_REPLICAS"
        held.release()
        for each in clients[:3]:
            assert produced(await each.receive(ApiKey.PRODUCE, 9))["error_code"] == "NONE"
        assert (await client.produce("orders", bomb()))["error_code"] == "NONE"

    play_held(script)


def test_a_small_request_that_stands_for_gigabytes_does_not_stop_the_loop(tmp_path: Path) -> None:
    """200 batches of 2 KB that grow to 60 MB each, on real threads; others are answered. What
    counts is what the loop's own thread computes, however busy the machine is."""

    async def main() -> None:
        async with broker(tmp_path) as running:
            client, other = await running.client(), await running.client()
            await client.create("orders", 200)
            await client.produce("orders", bomb())  # what is loaded once is loaded
            large = bomb(60 * MB)
            assert len(large) < 4096
            longest = 0.0
            client.send(ApiKey.PRODUCE, 9, many("orders", [(at, large) for at in range(200)]))
            answer = asyncio.ensure_future(client.receive(ApiKey.PRODUCE, 9))
            while not answer.done():
                began = time.thread_time()
                await round_trip(other)
                longest = max(longest, time.thread_time() - began)
            found = list(codes(await answer).values())
            assert found.count("NONE") == 4
            assert found.count("NOT_ENOUGH_REPLICAS") == 196
            assert longest < 0.5, "where the loop checks them itself, it takes seconds"

    run(main)


def test_searches_by_time_let_others_be_served_in_between() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 30)
        for index in range(30):
            await client.produce("orders", batch(b"a", timestamp=NOW_MS + index), partition=index)
        parts = [
            {"partition_index": at, "timestamp": time, "current_leader_epoch": -1}
            for at, time in enumerate([NOW_MS, -1, -2, -3] + [NOW_MS + 3] * 26)
        ]
        topics = [{"name": "orders", "partitions": parts}]
        fields = {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}
        turns: list[int] = []
        slices = running.server.node.slices
        call_later = slices._call_later

        def counted(seconds: float, callback: Callable[[], None]) -> Any:
            turns.append(1)
            return call_later(seconds, callback)

        slices._call_later = counted
        answer = await client.ask(ApiKey.LIST_OFFSETS, 11, fields)
        assert len(turns) == 27
        rows = answer["topics"][0]["partitions"]
        assert [each["partition_index"] for each in rows] == list(range(30))
        assert {each["error_code"] for each in rows} == {"NONE"}
        assert [each["offset"] for each in rows] == [0, 1, 0] + [0] * 27

    play(script)
