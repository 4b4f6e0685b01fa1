"""One connection: agreeing on versions, order, deadlines, and every way in which it can end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from onceflow.client.address import BrokerAddress
from onceflow.client.codec.versions import SPOKEN, VersionRange, choose
from onceflow.client.errors.requests import (
    AnswerMalformed,
    ApiNotServed,
    BrokerUnreachable,
    ConnectionClosed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
)
from onceflow.client.net.connection import BrokerConnection
from onceflow.client.net.frames import LARGEST_ANSWER
from onceflow.runtime.net import Net, RealNet
from onceflow.testing.faults import NetFaults
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import encode, message_class
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.schema import recast
from tests.unit.client.net.scripted_connection import (
    ALL_TOPICS,
    Raw,
    about,
    about_what_was_asked,
    simulate,
)
from tests.unit.client.scripted_broker import (
    ADDRESS,
    CLOSE,
    PORT,
    FakeBroker,
    api_versions,
    connect,
    listen,
    metadata,
    with_features,
)


def test_both_sides_settle_on_the_newest_version_they_share() -> None:
    async def program(client: Net, broker: Net) -> None:
        offer = {ApiKey.METADATA: VersionRange(0, 7), ApiKey.FETCH: VersionRange(4, 99)}
        seen = await listen(
            broker,
            {
                ApiKey.API_VERSIONS: lambda *_: api_versions(offer),
                ApiKey.METADATA: lambda *_: metadata({"orders": {0: 1}}),
            },
        )
        connection = await connect(client)
        assert connection.version_of(ApiKey.FETCH) == SPOKEN[ApiKey.FETCH].newest
        answer: Any = await connection.request(ApiKey.METADATA, ALL_TOPICS)
        # Asked in the broker's version, answered in ours.
        assert seen == [(ApiKey.API_VERSIONS, 4), (ApiKey.METADATA, 7)]
        assert answer.__version__ == SPOKEN[ApiKey.METADATA].newest
        assert [topic.name for topic in answer.topics] == ["orders"]

    simulate(program)


@pytest.mark.parametrize(("listed", "tried"), [(VersionRange(0, 2), [4, 2]), (None, [4, 0])])
def test_a_broker_that_does_not_know_our_api_versions_is_asked_again(
    listed: VersionRange | None, tried: list[int]
) -> None:
    def answer(version: int, request: Any) -> Any:
        if version > (listed.newest if listed else 0):
            refusal = api_versions({ApiKey.API_VERSIONS: listed} if listed else {})
            old: Any = recast(refusal, message_class(ApiKey.API_VERSIONS, 0, "response"))
            body = bytearray(encode(old))
            body[:2] = ErrorCode.UNSUPPORTED_VERSION.value.to_bytes(2, "big")
            return bytes(body)
        return api_versions({ApiKey.METADATA: VersionRange(5, 9)})

    async def program(client: Net, broker: Net) -> None:
        seen = await listen(broker, {ApiKey.API_VERSIONS: answer})
        connection = await connect(client)
        assert [version for _, version in seen] == tried
        assert connection.version_of(ApiKey.METADATA) == 9

    simulate(program)


def test_a_broker_that_will_not_say_what_it_speaks_is_told() -> None:
    def answer(version: int, request: Any) -> Any:
        return replace(api_versions({}), error_code=ErrorCode.INVALID_REQUEST)

    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.API_VERSIONS: answer})
        with pytest.raises(NotKafka, match=r"does not say.*INVALID_REQUEST"):
            await connect(client)

    simulate(program)


def test_it_runs_on_uvloop_too() -> None:
    async def main() -> None:
        net = RealNet()
        listener = await net.listen("127.0.0.1", 0, lambda: FakeBroker(answers, []))
        connection = await BrokerConnection.open(net, BrokerAddress(listener.host, listener.port))
        answer = await connection.request(ApiKey.METADATA, ALL_TOPICS)
        assert answer.topics[0].name == "orders"
        connection.close()
        await listener.close()

    answers = {ApiKey.METADATA: lambda *_: metadata({"orders": {0: 1}})}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_an_api_that_is_not_offered_is_named_with_both_ranges() -> None:
    async def program(client: Net, broker: Net) -> None:
        offer = {ApiKey.METADATA: VersionRange(20, 22)}
        await listen(broker, {ApiKey.API_VERSIONS: lambda *_: api_versions(offer)})
        connection = await connect(client)
        with pytest.raises(ApiNotServed, match=r"20 to 22 of METADATA.*speaks 4 to 12"):
            await connection.request(ApiKey.METADATA, ALL_TOPICS)
        with pytest.raises(ApiNotServed, match="no version at all of FETCH"):
            connection.version_of(ApiKey.FETCH)
        assert connection.is_open

    simulate(program)


def test_versions_are_chosen_from_what_overlaps() -> None:
    assert choose(VersionRange(4, 12), VersionRange(0, 9)) == 9
    assert choose(VersionRange(4, 12), VersionRange(12, 20)) == 12
    assert choose(VersionRange(4, 12), VersionRange(13, 20)) is None
    assert choose(VersionRange(4, 12), VersionRange(0, 3)) is None
    assert choose(VersionRange(4, 12), None) is None


def test_messages_in_the_code_are_the_newest_in_the_table() -> None:
    assert ALL_TOPICS.__version__ == SPOKEN[ApiKey.METADATA].newest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "speaks TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak the Kafka protocol"),
        (b"\x00\x00\x00\x08abcdefgh", "an answer to a request that was not made"),
        (b"\x00\x00\x00\x01a", "an answer to a request that was not made"),
        (b"", "accepts connections and does not answer"),
        (None, "closes the connection at once"),
    ],
)
def test_a_peer_that_is_no_kafka_broker_is_told(words: bytes | None, said: str) -> None:
    async def program(client: Net, broker: Net) -> None:
        await broker.listen("0.0.0.0", PORT, lambda: Raw(words))
        with pytest.raises(NotKafka, match=said) as raised:
            await connect(client)
        assert str(ADDRESS) in str(raised.value)

    simulate(program)


def test_nothing_that_is_text_is_taken_for_a_length() -> None:
    assert int.from_bytes(b"    ", "big") > LARGEST_ANSWER
    assert int.from_bytes(b"\x15\x03\x00\x00", "big") > LARGEST_ANSWER


def test_a_closed_port_and_an_unknown_name_are_told_apart() -> None:
    async def program(client: Net, broker: Net) -> None:
        with pytest.raises(BrokerUnreachable, match="nothing listens at broker:9092"):
            await connect(client)

    simulate(program)

    async def unknown() -> None:
        with pytest.raises(BrokerUnreachable, match=r"'no-such-host\.invalid'.*is not known"):
            await BrokerConnection.open(RealNet(), BrokerAddress("no-such-host.invalid", 9092))

    asyncio.run(unknown())


def test_answers_find_their_requests_in_whatever_pieces_they_come() -> None:
    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: about_what_was_asked})
        connection = await connect(client)
        names = [f"topic-{number}" for number in range(20)]
        answers = await asyncio.gather(
            *(connection.request(ApiKey.METADATA, about(name)) for name in names)
        )
        assert [each.topics[0].name for each in answers] == names

    simulate(program, NetFaults(split_chance=0.9))


def test_the_answer_to_a_cancelled_request_disturbs_nobody() -> None:
    async def program(client: Net, broker: Net) -> None:
        seen = await listen(broker, {ApiKey.METADATA: about_what_was_asked})
        connection = await connect(client)
        first = asyncio.create_task(connection.request(ApiKey.METADATA, about("first")))
        second = asyncio.create_task(connection.request(ApiKey.METADATA, about("second")))
        await asyncio.sleep(0)  # both are sent
        first.cancel()
        answer = await second
        assert answer.topics[0].name == "second"
        assert seen.count((ApiKey.METADATA, 12)) == 2

    simulate(program)


def test_a_request_without_an_answer_ends_the_connection_for_all() -> None:
    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: lambda *_: None})
        connection = await connect(client)
        patient = asyncio.create_task(connection.request(ApiKey.METADATA, ALL_TOPICS))
        started = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimedOut, match=r"did not answer METADATA within 2 s"):
            await connection.request(ApiKey.METADATA, ALL_TOPICS, timeout_s=2)
        assert asyncio.get_running_loop().time() - started == pytest.approx(2, abs=0.1)
        with pytest.raises(RequestTimedOut):
            await patient
        with pytest.raises(RequestTimedOut):
            await connection.request(ApiKey.METADATA, ALL_TOPICS)
        assert not connection.is_open

    simulate(program)


def test_when_the_broker_hangs_up_every_waiter_is_told() -> None:
    answers = iter((None, None, CLOSE))

    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: lambda *_: next(answers)})
        connection = await connect(client)
        results = await asyncio.gather(
            *(connection.request(ApiKey.METADATA, ALL_TOPICS) for _ in range(3)),
            return_exceptions=True,
        )
        assert [type(each) for each in results] == [ConnectionLost] * 3
        assert len({id(each) for each in results}) == 3
        assert not connection.is_open

    simulate(program)


def test_closing_tells_every_waiter_and_everyone_after() -> None:
    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: lambda *_: None})
        connection = await connect(client)
        waiting = asyncio.create_task(connection.request(ApiKey.METADATA, ALL_TOPICS))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(ConnectionClosed):
            await waiting
        with pytest.raises(ConnectionClosed):
            await connection.request(ApiKey.METADATA, ALL_TOPICS)

    simulate(program)


@pytest.mark.parametrize("body", [b"", b"\x00" * 7, b"\x00" * 5 + b"\x7f" * 40])
def test_an_answer_that_is_none_is_refused_and_the_connection_with_it(body: bytes) -> None:
    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.METADATA: lambda *_: body})
        connection = await connect(client)
        with pytest.raises(AnswerMalformed, match="answers METADATA"):
            await connection.request(ApiKey.METADATA, ALL_TOPICS)
        assert not connection.is_open

    simulate(program)


# --- features -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "known"), [(7, {"transaction.version": 2}), (0, {"transaction.version": 2}), (-1, {})]
)
def test_only_features_with_a_valid_epoch_count(epoch: int, known: dict[str, int]) -> None:
    async def program(client: Net, broker: Net) -> None:
        offer = with_features({"transaction.version": 2}, epoch)
        await listen(broker, {ApiKey.API_VERSIONS: lambda *_: offer})
        connection = await connect(client)
        assert connection.offer.features == known
        assert connection.offer.features_epoch == epoch

    simulate(program)


def test_a_broker_of_old_has_no_features() -> None:
    def answer(version: int, request: Any) -> Any:
        body = bytearray(encode(recast(api_versions(SPOKEN), old)))
        if version:
            body[:2] = ErrorCode.UNSUPPORTED_VERSION.value.to_bytes(2, "big")
        return bytes(body)

    old: Any = message_class(ApiKey.API_VERSIONS, 0, "response")

    async def program(client: Net, broker: Net) -> None:
        await listen(broker, {ApiKey.API_VERSIONS: answer})
        connection = await connect(client)
        assert connection.offer.features == {}
        assert connection.offer.features_epoch == -1

    simulate(program)
