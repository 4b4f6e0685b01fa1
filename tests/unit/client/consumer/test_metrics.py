"""What consumers count: each record once however it is handed out, what their group costs them, and
how far they are behind; the same for Prometheus."""

from __future__ import annotations

import asyncio
import threading
from math import isnan
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import onceflow
from onceflow import blocking
from onceflow.client.consumer.consumer import Consumer
from onceflow.client.metrics import NEVER, STEP_S, Meter
from onceflow.client.prometheus import ClientCollector
from tests.unit.broker.txn.transactional_requests import ended, ready, wrote
from tests.unit.client.consumer.simulated_consumers import Heard, Stage, hold, read, stage
from tests.unit.client.consumer.simulated_readers import P0

VALUES = [b"%d" % number for number in range(10)]


def test_reading_a_meter_changes_nothing() -> None:
    meter = Meter(0.0)
    meter.add(4, 1.0)
    later = meter.rate(100.0), meter.average(100.0), meter.longest(100.0)
    assert not any(later)
    assert meter.rate(1.0) == 4 / STEP_S
    assert (meter.average(1.0), meter.longest(1.0)) == (4, 4)


def test_each_record_counts_once_however_it_is_handed_out() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        async with on.consumer(clock=on.world.clock) as consumer:
            assert consumer.metrics()["records-consumed-total"] == 0
            await consumer.assign([P0])
            await anext(consumer)
            await anext(consumer)
            assert consumer.metrics()["records-consumed-total"] == 2
            assert len(await consumer.poll(1, max_records=3)) == 3
            assert consumer.metrics()["records-consumed-total"] == 5
            # What the loop had not taken is fetched again, and is no more than it was.
            consumer.pause([P0])
            consumer.resume([P0])
            table = await consumer.poll_table(1, max_rows=4)
            assert table is not None
            assert table.num_rows == 4
            assert consumer.metrics()["records-consumed-total"] == 9
            assert len(await consumer.poll(1)) == 1
            assert await consumer.poll(1) == []
            found = consumer.metrics()
        assert found["records-consumed-total"] == 10
        assert 0 < found["records-consumed-rate"] <= 10 / STEP_S
        assert found["bytes-consumed-total"] >= 10
        assert found["fetch-total"] >= 2
        assert 0 < found["fetch-latency-avg"] <= found["fetch-latency-max"]
        assert 0 < found["fetch-size-avg"] <= found["fetch-size-max"]
        assert found["fetch-throttle-time-max"] == 0
        assert "commit-total" not in found  # there is no group

    stage(program)


def test_time_between_polls_and_the_part_of_it_that_was_waited() -> None:
    async def program(on: Stage) -> None:
        async with on.consumer(clock=on.world.clock) as consumer:
            assert consumer.metrics()["last-poll-seconds-ago"] == NEVER
            await consumer.assign([P0])
            for _ in range(2):
                await consumer.poll(1)
                await asyncio.sleep(3)
            await consumer.poll(0)
            await asyncio.sleep(2)
            found = consumer.metrics()
        assert found["time-between-poll-avg"] == pytest.approx(4000, rel=0.01)
        assert found["time-between-poll-max"] == pytest.approx(4000, rel=0.01)
        assert found["poll-idle-ratio-avg"] == pytest.approx(0.25, rel=0.01)
        assert found["last-poll-seconds-ago"] == pytest.approx(2, rel=0.01)

    stage(program)


def test_how_far_it_is_behind_in_records_and_what_is_held_back() -> None:
    async def program(on: Stage) -> None:
        who = await ready(on.client, "t")
        await wrote(on.client, who, "orders", b"aborted", b"aborted")
        who = await ended(on.client, who, commit=False)
        await wrote(on.client, who, "orders", b"a", b"b", b"c")
        who = await ended(on.client, who, commit=True)
        async with on.consumer(max_poll_records=1) as consumer:
            assert isnan(consumer.metrics()["records-lag-max"])
            await consumer.assign([P0])
            assert len(await consumer.poll(1)) == 1
            found = consumer.metrics()
            assert found["orders-0.records-lag"] == found["records-lag-max"] == 2
            assert found["orders-0.records-lead"] == found["records-lead-min"] == 4
            assert found["assigned-partitions"] == 1
            await anext(consumer)
            assert consumer.metrics()["records-lag-max"] == 1
            await read(consumer, 1)
            await wrote(on.client, who, "orders", b"open", b"open")
            assert await consumer.poll(1) == []
            found = consumer.metrics()
            assert found["records-lag-max"] == 0
            assert found["orders-0.offsets-held-back"] == found["offsets-held-back-max"] == 2

    stage(program)


def test_what_a_member_of_a_group_counts() -> None:
    async def program(on: Stage) -> None:
        await on.produce(*VALUES)
        heard = Slow()
        async with on.member(clock=on.world.clock, heartbeat_interval_ms=1000) as member:
            found = member.metrics()
            assert found["last-heartbeat-seconds-ago"] == NEVER
            assert found["last-rebalance-seconds-ago"] == NEVER
            member.subscribe(["orders"], heard)
            await read(member, 10)
            await member.commit()
            await asyncio.sleep(5.5)
            found = member.metrics()
            assert found["rebalance-total"] == found["join-total"] == found["sync-total"] == 1
            assert found["rebalance-rate-per-hour"] > 1
            assert found["failed-rebalance-total"] == 0
            assert found["rebalance-latency-total"] == found["rebalance-latency-max"] > 0
            assert found["join-time-max"] + found["sync-time-max"] <= found["rebalance-latency-max"]
            assert found["partition-assigned-latency-max"] == pytest.approx(250, rel=0.01)
            assert found["partition-revoked-latency-max"] == 0
            assert found["commit-total"] == 1
            assert 0 < found["commit-latency-avg"] == found["commit-latency-max"]
            assert found["heartbeat-total"] == 5
            assert found["heartbeat-response-time-max"] > 0
            assert 0 <= found["last-heartbeat-seconds-ago"] < 1.1
            assert 5 < found["last-rebalance-seconds-ago"] < 7
            assert found["assigned-partitions"] == 2
            await member.unsubscribe()
            assert member.metrics()["partition-revoked-latency-max"] == pytest.approx(250, rel=0.01)

    stage(program, partitions=2)


class Slow(Heard):
    """Takes its time."""

    async def on_partitions_assigned(self, partitions: Any) -> None:
        await asyncio.sleep(0.25)

    async def on_partitions_revoked(self, partitions: Any) -> None:
        await asyncio.sleep(0.25)


def test_a_join_that_came_to_nothing_counts_as_failed() -> None:
    async def program(on: Stage) -> None:
        async with on.member("away", clock=on.world.clock) as member:
            member.subscribe(["orders"])
            await hold(member, 1)
            on.world.net.partition("away", "broker")
            member.subscribe(["orders", "others"])
            await member.poll(5)
            on.world.net.heal()
            await hold(member, 1)
            found = member.metrics()
            assert found["failed-rebalance-total"] >= 1
            assert found["rebalance-total"] >= 2

    stage(program)


def test_prometheus_reads_them_from_another_thread_while_it_polls() -> None:
    with onceflow.Broker() as broker:
        with blocking.Producer(broker.bootstrap) as producer, blocking.Admin(broker.bootstrap) as a:
            a.create_topic("orders", partitions=3)
            for number in range(300):
                producer.send("orders", b"x", partition=number % 3)
        shown = asyncio.run(_read_while_polling(broker.bootstrap))
    assert 'onceflow_consumer_records_consumed_total{client="shop"} 300.0' in shown
    assert 'onceflow_consumer_records_lag{client="shop",partition="2",topic="orders"} 0.0' in shown
    assert shown.count("# TYPE onceflow_consumer_records_lag gauge") == 1


async def _read_while_polling(bootstrap: str) -> str:
    registry = CollectorRegistry()
    failures: list[BaseException] = []
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.is_set():
            try:
                generate_latest(registry)
            except Exception as error:
                failures.append(error)

    async with Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=7) as consumer:
        registry.register(ClientCollector("shop", consumer.measured))
        thread = threading.Thread(target=scrape)
        thread.start()
        await consumer.assign(["orders"])
        await read(consumer, 300)
        is_over.set()
        await asyncio.to_thread(thread.join)
        assert not failures
        return generate_latest(registry).decode()
