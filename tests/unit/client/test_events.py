"""What clients log: the moments that whoever runs a service needs, with fields, at the right level,
and never a line for each record."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from typing import Any

import pytest

import onceflow
from onceflow import blocking
from onceflow.client.errors.consumer import FencedMember
from onceflow.client.errors.requests import ClientError, DeliveryFailed, UnknownOutcome
from onceflow.client.events import Names, Recurring
from onceflow.client.net.address import BrokerAddress
from onceflow.client.net.retry import RetryPolicy, retrying
from onceflow.client.net.stream import Stream
from onceflow.client.producer.producer import Producer
from onceflow.runtime.logs import JsonFormatter
from onceflow.testing.rand import SimRand
from onceflow.testing.world import run as simulate
from tests.unit.client.consumer.simulated_consumers import Heard, Stage, hold, read, stage
from tests.unit.client.consumer.simulated_readers import P0
from tests.unit.client.transactions.scripted_coordinator import Bench, bumped, code, lost

Happened = tuple[str, str, str]
"""Floor, event and level."""


def fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = getattr(record, "fields", {})
    return found


def happened(caplog: pytest.LogCaptureFixture, floor: str = "") -> list[Happened]:
    """What clients have told, each of which can be written as JSON."""
    found = []
    for record in caplog.records:
        if record.name.startswith(f"onceflow.client.{floor}"):
            written = json.loads(JsonFormatter().format(record))
            assert written["fields"] == json.loads(json.dumps(fields(record)))
            name = record.name.removeprefix("onceflow.client.")
            found.append((name, written["event"], record.levelname))
    return found


def one(caplog: pytest.LogCaptureFixture, event: str) -> logging.LogRecord:
    (found,) = [each for each in caplog.records if getattr(each, "event", None) == event]
    return found


# --- groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_created", [True, False])
def test_a_misspelt_subscription_is_told_once(
    caplog: pytest.LogCaptureFixture, is_created: bool
) -> None:
    async def program(on: Stage) -> None:
        leader = on.member("first", allow_auto_create_topics=is_created)
        follower = on.member("second", allow_auto_create_topics=is_created)
        async with leader, follower:
            leader.subscribe(["orders"])
            await hold(leader, 1)
            follower.subscribe(["ordres", "orders"])
            for _ in range(30):  # several rebalances, and looks at what is missing
                await asyncio.gather(leader.poll(1), follower.poll(1))
        assert ("ordres" in on.running.server.node.topics.by_name) is is_created

    stage(program)
    found = one(caplog, "missing")
    assert found.levelname == "WARNING"
    assert "group 'shop'" in found.getMessage()
    assert "there is no topic 'ordres'; did you mean 'orders'?" in found.getMessage()


def test_a_pattern_that_matches_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def program(on: Stage) -> None:
        async with on.member() as member:
            member.subscribe(pattern="ordres-.*")
            await member.poll(5)

    stage(program)
    assert "no topic matches 'ordres-.*'" in one(caplog, "missing").getMessage()


def test_a_member_tells_when_it_comes_what_it_is_given_and_when_it_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program(on: Stage) -> None:
        async with on.member(heartbeat_interval_ms=500) as member:
            member.subscribe(["orders"])
            await hold(member, 2)
            await member.commit({P0: 0})

    with caplog.at_level(logging.INFO, "onceflow.client"):
        stage(program, partitions=2)
    assert happened(caplog, "groups") == [
        ("groups", "joined", "INFO"),
        ("groups", "assigned", "INFO"),
        ("groups", "revoked", "INFO"),
        ("groups", "left", "INFO"),
    ]
    joined = one(caplog, "joined")
    assert joined.getMessage() == ("joined group 'shop', generation 1, as its leader (range)")
    assert fields(joined)["group"] == "shop"
    assert fields(joined)["generation"] == 1
    assert fields(one(caplog, "assigned"))["partitions"] == ("orders-0", "orders-1")
    assert "gives up orders-0, orders-1" in one(caplog, "revoked").getMessage()
    assert fields(one(caplog, "left"))["reason"] == "the consumer was closed"


def test_what_is_lost_is_a_warning_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def program(on: Stage) -> None:
        async with on.member(max_poll_interval_ms=2_000, enable_auto_commit=False) as member:
            member.subscribe(["orders"])
            await hold(member, 1)
            await asyncio.sleep(5)
            await hold(member, 1)

    with caplog.at_level(logging.WARNING, "onceflow.client"):
        stage(program)
    assert happened(caplog) == [
        ("groups", "overslept", "WARNING"),
        ("groups", "lost", "WARNING"),
    ]
    assert fields(one(caplog, "lost"))["partitions"] == ("orders-0",)
    assert "max.poll.interval.ms = 2000" in fields(one(caplog, "lost"))["reason"]


def test_a_static_member_tells_that_it_was_fenced_once(caplog: pytest.LogCaptureFixture) -> None:
    async def program(on: Stage) -> None:
        async with on.member(group_instance_id="one", heartbeat_interval_ms=500) as first:
            first.subscribe(["orders"])
            await hold(first, 1)
            async with on.member(group_instance_id="one") as second:
                second.subscribe(["orders"])
                await hold(second, 1)
                for _ in range(2):
                    with pytest.raises(FencedMember):
                        await first.poll(5)

    with caplog.at_level(logging.ERROR, "onceflow.client"):
        stage(program)
    assert happened(caplog) == [("groups", "fenced", "ERROR")]
    assert fields(one(caplog, "fenced"))["instance_id"] == "one"


# --- reading ------------------------------------------------------------------------------------


def test_where_reading_begins_without_a_commit_and_when_it_is_rewound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program(on: Stage) -> None:
        await on.produce(b"a", b"b")
        async with on.member() as member:
            await member.assign([P0])
            await read(member, 2)
            await member.commit({P0: 1})
            await member.rewind()
        async with on.member() as member:  # there is a commit: nothing to tell
            await member.assign([P0])
            await read(member, 1)

    with caplog.at_level(logging.INFO, "onceflow.client"):
        stage(program)
    assert happened(caplog, "reading") == [
        ("reading", "reset", "INFO"),
        ("reading", "rewound", "INFO"),
    ]
    reset = one(caplog, "reset")
    assert reset.getMessage() == (
        "nothing was committed of orders-0: reading begins at the earliest"
    )
    assert fields(one(caplog, "rewound"))["offsets"] == {"orders-0": 1}


# --- connections and retries --------------------------------------------------------------------


def test_connections_that_come_and_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "onceflow.client")
    with onceflow.Broker(process=True) as broker:
        with (
            blocking.Producer(broker.bootstrap, linger_ms=0) as producer,
            blocking.Admin(broker.bootstrap) as admin,
        ):
            admin.create_topic("orders", partitions=1)
            producer.send("orders", b"a").result(10)
            assert ("connections", "connected", "INFO") in happened(caplog)
            broker.kill()
            receipt = producer.send("orders", b"b")
            broker.restart()
            receipt.result(30)
        told = Counter(happened(caplog))
        assert told["connections", "connected", "INFO"] >= 3
        levels = {
            level for floor, event, level in told if (floor, event) == ("connections", "lost")
        }
        assert levels & {"INFO", "WARNING"}
        assert any(floor == "producing" and event == "again" for floor, event, _ in told)
        assert told["connections", "closed", "DEBUG"] >= 1
        connected = [r for r in caplog.records if getattr(r, "event", "") == "connected"]
        assert fields(connected[0]) == {"address": broker.bootstrap, "lane": "shared"}


def test_what_is_tried_again_is_told_quietly_and_aloud_when_it_takes_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(_: object) -> None:
        failures = iter(range(20))

        async def attempt() -> str:
            if next(failures, None) is not None:
                raise lost()
            return "done"

        async def refresh() -> None: ...

        assert await retrying(attempt, refresh, RetryPolicy(), SimRand(1)) == "done"

    with caplog.at_level(logging.DEBUG, "onceflow.client"):
        simulate(1, main)
    told = Counter(happened(caplog))
    assert told == {("requests", "again", "DEBUG"): 19, ("requests", "again", "INFO"): 1}
    assert {"reason", "since_s", "pause_s"} <= fields(caplog.records[0]).keys()


def test_a_throttled_client_tells_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main(_: object) -> None:
        stream = Stream(BrokerAddress("broker", 9092))
        stream.throttled("FETCH", 250)
        stream.throttled("FETCH", 300)
        stream.throttled("PRODUCE", 10)
        await asyncio.sleep(61)
        stream.throttled("FETCH", 400)

    with caplog.at_level(logging.INFO, "onceflow.client"):
        simulate(1, main)
    told = [(fields(each)["request"], fields(each)["throttle_ms"]) for each in caplog.records]
    assert told == [("FETCH", 250), ("PRODUCE", 10), ("FETCH", 400)]
    assert caplog.messages[0] == "broker:9092 throttled FETCH for 250 ms: a quota is used up"


def test_what_recurs_is_news_once_a_minute() -> None:
    recurring = Recurring()
    levels = [recurring.level("a", now) for now in (0.0, 1.0, 59.0, 60.0)]
    assert levels == [logging.INFO, logging.DEBUG, logging.DEBUG, logging.INFO]
    assert recurring.level("b", 1.0, logging.WARNING) == logging.WARNING


# --- producing and transactions -----------------------------------------------------------------


def test_how_transactions_begin_and_end(caplog: pytest.LogCaptureFixture) -> None:
    async def script(bootstrap: str) -> None:
        async with Producer(bootstrap, transactional_id="shop", linger_ms=0) as producer:
            async with producer.transaction() as transaction:
                await transaction.send("orders", b"a")
            await producer.begin_transaction()
            await producer.send("orders", b"b")
            await producer.abort_transaction()

    with onceflow.Broker() as broker, blocking.Admin(broker.bootstrap) as admin:
        admin.create_topic("orders", partitions=1)
        with caplog.at_level(logging.DEBUG, "onceflow.client.transactions"):
            asyncio.run(script(broker.bootstrap))
    told = [each for each in happened(caplog, "transactions") if each[1] != "again"]
    assert told == [
        ("transactions", "initialized", "INFO"),
        ("transactions", "begun", "DEBUG"),
        ("transactions", "committed", "DEBUG"),
        ("transactions", "begun", "DEBUG"),
        ("transactions", "aborted", "INFO"),
    ]
    assert fields(one(caplog, "committed"))["transactional_id"] == "shop"
    assert one(caplog, "aborted").getMessage() == "a transaction of 'shop' is aborted"


def test_a_commit_in_doubt_is_a_warning_and_its_end_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "onceflow.client")
    bench = Bench()
    machine = bench.in_transaction()
    with pytest.raises(UnknownOutcome):
        bench.run_out(machine.commit(), lost())
    bench.run(machine.resolve(), bumped(1))
    told = [each for each in happened(caplog) if each[1] != "again"]
    assert told == [("transactions", "unknown", "WARNING"), ("transactions", "resolved", "INFO")]


def test_a_fenced_producer_tells_so(caplog: pytest.LogCaptureFixture) -> None:
    from onceflow.wire.error_codes import ErrorCode

    caplog.set_level(logging.ERROR, "onceflow.client")
    bench = Bench(1)
    machine = bench.in_transaction()
    with pytest.raises(ClientError):
        bench.run(machine.commit(), code(ErrorCode.PRODUCER_FENCED))
    assert happened(caplog) == [("transactions", "fenced", "ERROR")]


def test_records_that_are_not_delivered_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with onceflow.Broker() as broker, blocking.Admin(broker.bootstrap) as admin:
        admin.create_topic("orders", partitions=1, configs={"max.message.bytes": "5000"})
        with (
            caplog.at_level(logging.WARNING, "onceflow.client"),
            blocking.Producer(broker.bootstrap, linger_ms=0) as producer,
        ):
            for _ in range(3):
                receipt = producer.send("orders", b"x" * 10_000)
                with pytest.raises(DeliveryFailed):
                    receipt.result(10)
    assert happened(caplog) == [("producing", "undelivered", "WARNING")]
    assert fields(one(caplog, "undelivered"))["records"] == 1


# --- all of them --------------------------------------------------------------------------------


def test_there_is_no_line_for_each_record(caplog: pytest.LogCaptureFixture) -> None:
    async def program(on: Stage) -> None:
        for _ in range(10):
            await on.produce(*(b"%d" % number for number in range(100)))
        async with on.member(max_poll_records=50, auto_commit_interval_ms=0) as member:
            member.subscribe(["orders"], Heard())
            assert len(await read(member, 1000)) == 1000

    with caplog.at_level(logging.DEBUG, "onceflow.client"):
        stage(program)
    told = Counter(happened(caplog))
    assert told.pop(("groups", "committed", "DEBUG")) <= 30
    assert sum(told.values()) < 20


def test_an_event_names_the_place_that_told_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onceflow.client")
    bench = Bench()
    bench.in_transaction()
    with pytest.raises(UnknownOutcome):
        bench.run_out(bench.machine.commit(), lost())
    assert one(caplog, "unknown").filename == "machine.py"


def test_names_are_words_in_a_message_and_a_list_in_json() -> None:
    names = Names.of([P0, "x"])
    assert str(names) == "orders-0, x"
    assert json.dumps(names) == '["orders-0", "x"]'
    assert str(Names.of([])) == "none"
