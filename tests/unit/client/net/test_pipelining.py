"""Several requests on one connection, their deadlines, and processes that share none."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

from onceflow.client.address import BrokerAddress
from onceflow.client.codec.produce import write_produce
from onceflow.client.errors.requests import (
    ApiNotServed,
    ConnectionLost,
    CrossedFork,
    NotKafka,
    RequestTimedOut,
)
from onceflow.client.net.connection import BrokerConnection
from onceflow.runtime.net import Net, RealListener, RealNet
from onceflow.testing.faults import NetFaults
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import decode, encode, message_class
from tests.unit.client.net.scripted_connection import (
    ALL_TOPICS,
    Raw,
    about,
    about_what_was_asked,
    simulate,
)
from tests.unit.client.scripted_broker import CLOSE, PORT, FakeBroker, connect, listen, metadata


def metadata_body(name: str) -> list[bytes]:
    """A request in three parts."""
    body = encode(about(name))
    return [body[:1], body[1:4], body[4:]]


def test_requests_go_out_at_once_and_answers_come_in_their_order() -> None:
    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: about_what_was_asked})
        connection = await connect(client)
        names = [f"topic-{number}" for number in range(5)]
        futures = [connection.submit(ApiKey.METADATA, 12, metadata_body(each)) for each in names]
        assert connection.in_flight == 5
        answers = await asyncio.gather(*futures)
        assert connection.in_flight == 0
        kind = message_class(ApiKey.METADATA, 12, "response")
        assert [decode(kind, each).topics[0].name for each in answers] == names

    simulate(program, NetFaults(split_chance=0.5))


def test_large_requests_arrive_whole() -> None:
    long = "x" * 30_000

    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: about_what_was_asked})
        connection = await connect(client)
        topics = tuple(
            MetadataRequestTopic(topic_id=None, name=f"{long}{number}") for number in range(5)
        )
        body = encode(MetadataRequest(topics=topics, include_topic_authorized_operations=False))
        parts = [memoryview(body)[at : at + 50_000] for at in range(0, len(body), 50_000)]
        assert len(parts) > 2
        answer = await connection.submit(ApiKey.METADATA, 12, parts)
        found = decode(message_class(ApiKey.METADATA, 12, "response"), answer)
        assert [each.name for each in found.topics] == [each.name for each in topics]

    simulate(program)


def test_the_shortest_deadline_of_those_in_flight_counts() -> None:
    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: lambda *_: None})
        connection = await connect(client)
        loop = asyncio.get_running_loop()
        started = loop.time()
        patient = connection.submit(ApiKey.METADATA, 12, metadata_body("a"), timeout_s=9)
        hurried = connection.submit(ApiKey.METADATA, 12, metadata_body("b"), timeout_s=2)
        for future in (patient, hurried):
            with pytest.raises(RequestTimedOut, match="within 2 s"):
                await future
        assert loop.time() - started == pytest.approx(2, abs=0.1)

    simulate(program)


def test_a_deadline_moves_on_with_the_requests() -> None:
    answers = iter((metadata({}), None))

    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: lambda *_: next(answers)})
        connection = await connect(client)
        loop = asyncio.get_running_loop()
        await connection.submit(ApiKey.METADATA, 12, metadata_body("a"), timeout_s=3)
        await asyncio.sleep(2)
        started = loop.time()
        with pytest.raises(RequestTimedOut):
            await connection.submit(ApiKey.METADATA, 12, metadata_body("b"), timeout_s=3)
        assert loop.time() - started == pytest.approx(3, abs=0.1)

    simulate(program)


def test_what_needs_no_answer_leaves_the_order_of_the_others() -> None:
    async def program(client: Net, broker: Net) -> None:
        answers = {ApiKey.METADATA: about_what_was_asked, ApiKey.PRODUCE: lambda *_: None}
        seen = await listen(broker, answers)
        connection = await connect(client)
        body = write_produce(9, {}, transactional_id=None, acks=0, timeout_ms=1)
        connection.tell(ApiKey.PRODUCE, 9, body)
        answer: Any = await connection.request(ApiKey.METADATA, about("orders"))
        assert answer.topics[0].name == "orders"
        assert seen[-2:] == [(ApiKey.PRODUCE, 9), (ApiKey.METADATA, 12)]

    simulate(program)


def test_what_was_not_sent_was_not_applied() -> None:
    answers = iter((CLOSE,))

    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: lambda *_: next(answers)})
        connection = await connect(client)
        outcomes = []
        for _ in range(2):
            with pytest.raises(ConnectionLost) as raised:
                await connection.request(ApiKey.METADATA, ALL_TOPICS)
            outcomes.append(raised.value.outcome)
        assert outcomes == ["unknown", "not applied"]

    simulate(program)


def test_a_version_can_be_held_below_what_both_speak() -> None:
    async def program(client: Net, broker: Net) -> None:
        seen = await listen(broker, {ApiKey.METADATA: lambda *_: metadata({})})
        connection = await connect(client)
        assert connection.version_of(ApiKey.PRODUCE, newest=11) == 11
        await connection.request(ApiKey.METADATA, ALL_TOPICS, newest=8)
        assert seen[-1] == (ApiKey.METADATA, 8)
        with pytest.raises(ApiNotServed):
            connection.version_of(ApiKey.PRODUCE, newest=2)

    simulate(program)


# --- time and processes -------------------------------------------------------------------------


@pytest.mark.parametrize("words", [b"", b"\x00\x00"])
def test_opening_has_one_deadline_for_all_of_it(words: bytes) -> None:
    async def program(client: Net, broker: Net) -> None:
        await broker.listen("0.0.0.0", PORT, lambda: Raw(words))
        started = asyncio.get_running_loop().time()
        with pytest.raises(NotKafka, match="does not answer"):
            await connect(client, connect_timeout_s=2)
        assert asyncio.get_running_loop().time() - started == pytest.approx(2, abs=0.05)

    simulate(program)


def test_a_broker_that_hangs_up_on_the_first_request_may_want_a_login() -> None:
    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: lambda *_: CLOSE})
        connection = await connect(client)
        with pytest.raises(ConnectionLost, match=r"wants a login, set security\.protocol"):
            await connection.request(ApiKey.METADATA, ALL_TOPICS)

    simulate(program)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_connection_does_not_cross_a_fork() -> None:
    answers = {ApiKey.METADATA: lambda *_: metadata({"orders": {0: 1}})}

    async def open_one() -> tuple[RealListener, BrokerConnection]:
        listener = await RealNet().listen("127.0.0.1", 0, lambda: FakeBroker(answers, []))
        address = BrokerAddress(listener.host, listener.port)
        return listener, await BrokerConnection.open(RealNet(), address)

    with asyncio.Runner() as runner:
        listener, connection = runner.run(open_one())
        child = os.fork()
        if child == 0:
            os._exit(0 if _is_refused(connection) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # The child has closed its copy, and the parent's goes on.
        answer: Any = runner.run(connection.request(ApiKey.METADATA, ALL_TOPICS))
        assert answer.topics[0].name == "orders"
        connection.close()
        runner.run(listener.close())


def _is_refused(connection: BrokerConnection) -> bool:
    """In the child; what is raised there must not end in a second run of the tests."""
    try:
        connection.submit(ApiKey.METADATA, 12, [])
    except CrossedFork:
        is_open = connection.is_open
        connection.close()
        return not is_open
    except BaseException:
        return False
    return False
