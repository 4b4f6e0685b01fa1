"""The examples, each run as it is on a broker: what comes out is what a computation of the same
input in plain Python gives."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onceflow
from onceflow.spark.pipeline import Pipeline
from tests.spark.pipeline_world import Read, example, make_topic, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_twice(
    path: Path, generate: Any, spark: SparkSession, broker: onceflow.Broker, counts: tuple[int, int]
) -> None:
    """On some input, and again on that and more: the generator begins anew each time."""
    pipeline = Pipeline.from_file(path, bootstrap=broker.bootstrap)
    for count in counts:
        asyncio.run(generate.send(broker.bootstrap, count))
        pipeline.run(spark, once=True)


def values(records: list[Read]) -> list[Any]:
    return [json.loads(each.value or b"null") for each in records]


def test_order_totals(spark: SparkSession, broker: onceflow.Broker, tmp_path: Path) -> None:
    path, generate = example("order_totals", tmp_path)
    make_topic(broker.bootstrap, generate.TOPIC)
    run_twice(path, generate, spark, broker, (300, 500))

    expected, refused = [], Counter[str]()
    for _, value in [*generate.orders(300), *generate.orders(500)]:
        try:
            order = json.loads(value)
        except ValueError:
            refused["the value is not JSON"] += 1
            continue
        if not isinstance(order["order_id"], int):
            refused["the value does not fit to the schema of the JSON"] += 1
        elif not order["lines"]:
            refused["breaks the rule has lines: size(lines) > 0"] += 1
        elif any(line["quantity"] < 1 for line in order["lines"]):
            rule = "forall(lines, line -> line.quantity > 0)"
            refused[f"breaks the rule quantities are positive: {rule}"] += 1
        else:
            total = sum(line["quantity"] * line["cents"] for line in order["lines"])
            expected.append((order["order_id"], order["customer"], total))
    found = read_all(broker.bootstrap, "order-totals")
    assert sorted(
        (each["order_id"], each["customer"], each["total_cents"]) for each in values(found)
    ) == sorted(expected)
    assert all(each.key == json.loads(each.value or b"")["customer"].encode() for each in found)
    assert all(each.headers == {"kind": b"order total"} for each in found)
    letters = read_all(broker.bootstrap, "orders-refused")
    assert Counter(each.headers["error"].decode() for each in letters) == refused
    sent = {
        (b"%d" % each.partition, b"%d" % each.offset): each.value
        for each in read_all(broker.bootstrap, generate.TOPIC)
    }
    for each in letters:
        place = each.headers["source.partition"], each.headers["source.offset"]
        assert each.value == sent[place]
        assert each.headers["source.topic"] == generate.TOPIC.encode()


def test_page_views(spark: SparkSession, broker: onceflow.Broker, tmp_path: Path) -> None:
    path, generate = example("page_views", tmp_path)
    make_topic(broker.bootstrap, generate.TOPIC)
    run_twice(path, generate, spark, broker, (400, 400))

    counts: Counter[tuple[str, str]] = Counter()
    visitors = defaultdict(set)
    refused = 0
    for _, value in [*generate.views(400)] * 2:
        at, page, visitor = value.decode().split(",")
        if at == "yesterday":
            refused += 1
            continue
        minute = f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M}"
        counts[page, minute] += 1
        visitors[page, minute].add(visitor)
    found = read_all(broker.bootstrap, "views-per-minute")
    last = {each.key: json.loads(each.value or b"") for each in found}  # in order of offsets
    assert {(each["page"], each["minute"]): each["views"] for each in last.values()} == counts
    assert len(found) > len(counts), "no count has changed"
    assert all(
        abs(each["visitors"] - len(visitors[each["page"], each["minute"]]))
        <= 0.1 * len(visitors[each["page"], each["minute"]])
        for each in last.values()
    )
    assert len(read_all(broker.bootstrap, "views-refused")) == refused


def test_paid_orders(spark: SparkSession, broker: onceflow.Broker, tmp_path: Path) -> None:
    path, generate = example("paid_orders", tmp_path)
    for topic in (generate.ORDERS, generate.PAYMENTS):
        make_topic(broker.bootstrap, topic)
    run_twice(path, generate, spark, broker, (60, 0))

    orders: dict[int, Any] = {}
    expected, refused = [], 0
    for topic, _, value in generate.events(60):
        event = json.loads(value)
        if topic == generate.ORDERS:
            orders[event["order_id"]] = event
        elif event["cents"] > 0:
            cents = orders[event["order_id"]]["cents"]
            left = cents - event["cents"]
            expected.append((event["order_id"], cents, left, event["method"]))
        else:
            refused += 1
    found = values(read_all(broker.bootstrap, "paid-orders"))
    assert sorted(
        (each["order_id"], each["cents"], each["open_cents"], each["method"]) for each in found
    ) == sorted(expected)
    letters = read_all(broker.bootstrap, "paid-orders-refused")
    assert len(letters) == refused > 0
    assert {each.headers["source.topic"] for each in letters} == {generate.PAYMENTS.encode()}
