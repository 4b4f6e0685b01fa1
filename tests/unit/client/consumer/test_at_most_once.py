"""With `delivery=at-most-once` rows are committed before they are handed out: none is lost when
that is cut short, and none is kept back for another partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.client.codec.transactions import GroupMember
from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.requests import ClientError
from onceflow.client.producer.producer import Producer
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import batch
from tests.unit.client.consumer.simulated_consumers import GROUP, Stage, read, stage
from tests.unit.client.consumer.simulated_readers import P0, P1
from tests.unit.client.request_taps import Late, RequestTap, once

AT_MOST: dict[str, Any] = {"delivery": "at-most-once", "heartbeat_interval_ms": 200}


async def cut_short(consumer: Consumer, how: str) -> None:
    polled = anext(consumer) if how == "one by one" else getattr(consumer, how)(100)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(polled, 5)


@pytest.mark.parametrize("how", ["poll", "poll_by_partition", "poll_table", "one by one"])
def test_a_poll_that_is_cut_short_while_it_commits_takes_nothing(how: str) -> None:
    """Where to read became known while it already waited for rows: of another partition it is not,
    as a transaction is about to commit its offset."""

    async def program(on: Stage) -> None:
        await on.produce(*(b"%d" % number for number in range(5)))
        host, port = on.running.address
        producer = Producer(f"{host}:{port}", net=on.world.net.host("p"), transactional_id="t")
        async with on.member(**AT_MOST) as consumer, producer:
            await consumer.commit({P0: 0})
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({P1: 0}, GroupMember(GROUP))
            on.world.net.tap(RequestTap(on.world.loop, once(ApiKey.OFFSET_COMMIT, Late(10))))
            await consumer.assign([P0, P1])
            await cut_short(consumer, how)
            await producer.abort_transaction()
            assert await consumer.position(P0) == 0
            assert [each.offset for each in await read(consumer, 5)] == [*range(5)]

    stage(program, partitions=2)


def test_a_seek_while_it_commits_is_not_undone() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*(b"%d" % number for number in range(5)))
        async with on.member(**AT_MOST) as consumer:
            await consumer.assign([P0])
            on.world.net.tap(RequestTap(on.world.loop, once(ApiKey.OFFSET_COMMIT, Late(20))))
            cut = asyncio.get_running_loop().create_task(cut_short(consumer, "poll"))
            await asyncio.sleep(2)
            await consumer.seek(P0, 3)
            await cut
            assert [each.offset for each in await read(consumer, 2)] == [3, 4]

    stage(program)


@pytest.mark.parametrize("how", ["assign", "subscribe"])
def test_a_deleted_topic_keeps_no_rows_of_others_back(how: str) -> None:
    async def program(on: Stage) -> None:
        await on.client.create("gone", 1)
        await on.produce(b"a")
        await on.client.produce("gone", batch(b"b"))
        async with on.member(**AT_MOST) as consumer:
            if how == "assign":
                await consumer.assign(["orders", "gone"])
            else:
                consumer.subscribe(["orders", "gone"])
            await read(consumer, 2)
            fields = {"topics": [{"name": "gone", "topic_id": None}], "timeout": 1000}
            await on.client.ask(ApiKey.DELETE_TOPICS, 6, fields)
            await on.produce(b"c", b"d", b"e")
            offsets: list[int] = []
            async with asyncio.timeout(10):
                while len(offsets) < 3:
                    try:
                        offsets += [each.offset for each in await consumer.poll(1)]
                    except ClientError:  # that there is no such topic
                        await asyncio.sleep(0.1)
            assert offsets == [1, 2, 3]
            assert (await consumer.committed([P0]))[P0].offset == 4

    stage(program)
