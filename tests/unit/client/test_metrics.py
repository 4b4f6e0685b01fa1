"""What clients count: totals that never go back, rates of lately, and that nothing is missed."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry, generate_latest

import onceflow
from onceflow.client.admin.admin import Admin
from onceflow.client.errors.requests import ClientError
from onceflow.client.metrics import STEP_S, WINDOW_S, Meter
from onceflow.client.producer.metrics import ProducerMetrics
from onceflow.client.producer.producer import Producer
from onceflow.client.prometheus import ClientCollector


def test_a_rate_is_of_the_window() -> None:
    meter = Meter(100.0)
    for second in range(60):
        meter.add(5, 100.0 + second)
    assert meter.total == 300
    assert meter.rate(159.0) == pytest.approx(5, rel=0.1)
    assert meter.rate(159.0 + WINDOW_S + STEP_S) == 0
    assert meter.total == 300


def test_a_young_meter_divides_by_its_age() -> None:
    meter = Meter(0.0)
    meter.add(40, 3.0)
    assert meter.rate(10.0) == 4


def test_averages_and_longest() -> None:
    meter = Meter(0.0)
    assert meter.average(0.0) == meter.longest(0.0) == 0
    for amount in (1, 2, 9):
        meter.add(amount, 1.0)
    assert (meter.average(1.0), meter.longest(1.0)) == (4, 9)
    meter.add(2, 20.0)
    assert (meter.average(20.0), meter.longest(20.0)) == (3.5, 9)
    assert (meter.average(40.0), meter.longest(40.0)) == (2, 2)


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 100)), max_size=200))
def test_nothing_of_the_window_is_lost_and_nothing_older_counts(
    events: list[tuple[float, int]],
) -> None:
    meter = Meter(0.0)
    ordered = sorted(events)
    for when, amount in ordered:
        meter.add(amount, when)
    now = ordered[-1][0] if ordered else 0.0
    span = max(STEP_S, min(WINDOW_S, now))
    surely = sum(amount for when, amount in ordered if when > now - WINDOW_S + STEP_S)
    at_most = sum(amount for when, amount in ordered if when > now - WINDOW_S - STEP_S)
    assert surely - 1e-6 <= meter.rate(now) * span <= at_most + 1e-6


def test_what_a_producer_counts() -> None:
    async def script(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topic("out", partitions=1, configs={"max.message.bytes": "5000"})
        async with Producer(bootstrap, transactional_id="id", linger_ms=0) as producer:
            async with producer.transaction() as transaction:
                for _ in range(10):
                    await transaction.send("out", b"x" * 100)
            with pytest.raises(ClientError):
                await too_large(producer)
            found = producer.metrics()
        assert found["record-send-total"] == 10
        assert found["record-error-total"] == 1
        assert found["record-retry-total"] == 0
        assert found["outgoing-byte-total"] > 1000
        assert found["txn-commit-total"] == found["txn-abort-total"] == 1
        assert found["request-total"] >= 2
        assert 0 < found["request-latency-avg"] <= found["request-latency-max"]
        assert 0 < found["record-send-rate"] <= 10
        assert found["txn-commit-time-max"] > 0

    async def too_large(producer: Producer) -> None:
        async with producer.transaction() as transaction:
            receipt = await transaction.send("out", b"x" * 10_000)
            await receipt

    with onceflow.Broker() as broker:
        asyncio.run(script(broker.bootstrap))


def test_prometheus_reads_them() -> None:
    counted = ProducerMetrics(lambda: 10.0)
    counted.delivered(7)
    counted.committed(0.25)
    registry = CollectorRegistry()
    registry.register(ClientCollector("shop", counted))
    shown = generate_latest(registry).decode()
    assert 'onceflow_producer_record_send_total{client="shop"} 7.0' in shown
    assert 'onceflow_producer_record_send_rate{client="shop"} 3.5' in shown
    assert 'onceflow_producer_txn_commit_time_max{client="shop"} 250.0' in shown
    assert shown.count("# TYPE onceflow_producer_") == len(counted.metrics)
