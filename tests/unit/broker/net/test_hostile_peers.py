"""Bytes that are not the protocol, peers that say nothing, and too many of them.

Each ends its own connection with one line in the log, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from pathlib import Path

import pytest

from onceflow.broker.server import Server
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from onceflow.wire.header import request_header
from tests.unit.broker.broker_under_test import (
    SOFTWARE,
    RawClient,
    batch,
    broker,
    fetch_fields,
    run,
    simulated_broker,
)


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def request(key: int, version: int, body: bytes) -> bytes:
    return frame(struct.pack(">hhih", key, version, 1, 4) + b"test" + body)


HOSTILE = {
    "a negative length": (struct.pack(">i", -5), "a frame of -5 bytes"),
    "an empty frame": (struct.pack(">i", 0), "a frame of 0 bytes"),
    "a huge frame": (struct.pack(">i", 2**31 - 1), "a frame of 2147483647 bytes"),
    "a frame too short for a header": (frame(b"\x00\x03"), "too short for a header"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP"),
    "TLS": (bytes.fromhex("1603010200010001fc0303"), "TLS"),
    "noise": (bytes(range(255, 0, -1)), "a frame of -"),
    "an unknown key": (request(999, 0, b""), "API 999 is not served"),
    "a key that is not served": (request(67, 0, bytes(12)), "API 67 is not served"),
    "a version too high": (request(3, 99, b"\x00"), "version 99 of METADATA is not served"),
    "a version too low": (request(0, 2, b""), "version 2 of PRODUCE is not served"),
    "a negative version": (request(3, -1, b""), "version -1 of METADATA is not served"),
    "a body cut off": (request(3, 1, b"\x00\x00"), "cut off"),
    "a huge count": (request(3, 1, struct.pack(">i", 2**31 - 1)), "2147483647"),
    "too many elements": (
        request(3, 1, struct.pack(">i", 150_000) + b"\x00\x00" * 150_000),
        "more elements",
    ),
    "too many partitions to produce to": (
        request(0, 7, b"\xff\xff\x00\x01" + bytes(4) + struct.pack(">i", 150_000) + bytes(900_000)),
        "more elements",
    ),
    "a client id that is too long": (
        frame(struct.pack(">hhih", 3, 1, 1, 3000)),
        "client id of 3000",
    ),
    "a Produce cut off": (request(0, 7, b"\xff\xff\x00\x01"), "cut off"),
    "a Fetch cut off": (request(1, 4, b"\x00" * 7), "cut off"),
    "tags that reach past the end": (request(3, 9, b"\x01\x05\x7f"), "tagged field"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bytes_that_are_not_the_protocol_end_one_connection_with_one_line(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, reason = HOSTILE[name]

    async def main() -> None:
        async with broker(tmp_path) as running:
            other, waiting = await running.client(), await running.client()
            await other.create("orders")
            waiting.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=60_000, min_bytes=1))
            hostile = await running.client()
            hostile.send_bytes(data)
            await hostile.closed()
            assert not hostile.frames
            await other.produce("orders", batch(b"on"))
            assert (
                b"on"
                in (await waiting.receive(ApiKey.FETCH, 12))["responses"][0]["partitions"][0][
                    "records"
                ]
            )

    with caplog.at_level(logging.INFO, "onceflow"):
        run(main)
    lines = [each for each in caplog.records if "connection" in each.getMessage()]
    assert [each.levelname for each in lines] == ["WARNING"]
    assert reason in lines[0].getMessage()
    assert "127.0.0.1:" in lines[0].getMessage(), "it says whose"


def test_what_was_asked_before_the_garbage_may_be_answered_and_what_follows_is_not(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            await client.create("orders")
            good = request_header(ApiKey.METADATA, 1, 77, "x") + struct.pack(">i", 0)
            client.send_bytes(frame(good) + struct.pack(">i", -1) + frame(good) * 5)
            await client.closed()
            assert len(client.frames) <= 1

    run(main)


def test_an_unknown_version_of_api_versions_is_answered_so_that_clients_can_go_on(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client = await running.client()
            for version in (6, 99, 2**15 - 1):
                client.send_body(ApiKey.API_VERSIONS, version, b"\x05what\x02v\x00")
                answer = await client.receive(ApiKey.API_VERSIONS, 0)
                assert answer["error_code"] == "UNSUPPORTED_VERSION"
                assert answer["api_keys"] == [{"api_key": 18, "min_version": 0, "max_version": 5}]
            good = await client.ask(ApiKey.API_VERSIONS, 4, SOFTWARE)
            assert good["error_code"] == "NONE"
            bad = await client.ask(
                ApiKey.API_VERSIONS, 3, {**SOFTWARE, "client_software_name": "-bad-"}
            )
            assert bad["error_code"] == "INVALID_REQUEST"

    run(main)


def test_a_request_in_many_pieces_is_one_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            client, other = await running.client(), await running.client()
            data = frame(request_header(ApiKey.METADATA, 1, 77, "x") + struct.pack(">i", 0))
            for byte in data * 3:
                client.send_bytes(bytes([byte]))
                await other.ask(ApiKey.API_VERSIONS, 0, {})
            for _ in range(3):
                assert (await client.receive_frame())[:4] == struct.pack(">i", 77)

    run(main)


def test_one_connection_more_than_allowed_is_closed_and_room_is_given_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with broker(tmp_path, max_connections=3) as running:
            clients = [await running.client() for _ in range(3)]
            for client in clients:
                await client.ask(ApiKey.API_VERSIONS, 0, {})
            refused = await running.client()
            await refused.closed()
            for client in clients:
                await client.ask(ApiKey.API_VERSIONS, 0, {})
            clients[0].close()
            while len(running.server._connections) > 2:
                await clients[1].ask(ApiKey.API_VERSIONS, 0, {})
            again = await running.client()
            await again.ask(ApiKey.API_VERSIONS, 0, {})

    run(main)
    lines = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(lines) == 1
    assert "there are 3 connections already" in lines[0]


def test_a_defect_of_ours_costs_one_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    async def main() -> None:
        async with broker(tmp_path) as running:
            client, other = await running.client(), await running.client()
            await other.create("orders")
            monkeypatch.setattr("onceflow.broker.handlers.fetch._read_all", broken)
            client.send(ApiKey.FETCH, 12, fetch_fields("orders", 0))
            await client.closed()
            assert (await other.produce("orders", batch(b"on")))["error_code"] == "NONE"

    run(main)
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "internal error while serving 127.0.0.1:" in record.getMessage()
    assert record.exc_info is not None


# --- peers that say nothing, in virtual time -----------------------------------------------------


async def lives(client: RawClient) -> bool:
    try:
        await client.ask(ApiKey.API_VERSIONS, 0, {})
    except (ConnectionError, TimeoutError):
        return False
    return True


def server_sees(server: Server) -> int:
    return len(server._connections)


def test_half_a_request_is_waited_for_only_so_long(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            half, quiet = await running.client(), await running.client()
            half.send_bytes(b"\x00\x00\x00\x50half")
            await asyncio.sleep(29)
            assert server_sees(running.server) == 2
            await asyncio.sleep(10)
            assert half.is_lost
            assert await lives(quiet)

    simulate(1, main)
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "half a request" in line


def test_a_request_that_trickles_in_is_waited_for_no_longer_than_one_that_stops() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            slow, steady = await running.client(), await running.client()
            slow.send_bytes(struct.pack(">i", 1000))
            for second in range(45):
                slow.send_bytes(b"x")
                if second % 2 == 0:  # many whole requests, the last of them never finished yet
                    data = frame(request_header(ApiKey.METADATA, 1, 7, "x") + bytes(4))
                    steady.send_bytes(data[3:] + data[:3] if second else data + data[:3])
                await asyncio.sleep(1)
            assert slow.is_lost
            assert not steady.is_lost
            assert len(steady.frames) == 23

    simulate(1, main)


def test_an_idle_client_is_let_go_and_one_that_waits_for_an_answer_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, connections_max_idle_ms=60_000) as running:
            idle, busy, waiting = [await running.client() for _ in range(3)]
            await idle.create("orders")
            waiting.send(ApiKey.FETCH, 12, fetch_fields("orders", 0, max_wait=300_000, min_bytes=1))
            for _ in range(10):
                await asyncio.sleep(20)
                assert await lives(busy)
            assert idle.is_lost
            (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
            assert "idle for" in line
            waiting.patience = 110
            answer = await waiting.receive(ApiKey.FETCH, 12)
            assert answer["responses"][0]["partitions"][0]["records"] == b""
            await asyncio.sleep(50)
            assert not waiting.is_lost, "its time begins with the answer"
            await asyncio.sleep(20)
            assert waiting.is_lost

    simulate(1, main)


def test_a_client_that_never_takes_its_answers_is_let_go() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, connections_max_idle_ms=60_000) as running:
            deaf, other = await running.client(), await running.client()
            await other.create("orders", 100)
            deaf.transport.pause_reading()
            for _ in range(500):
                deaf.send(ApiKey.METADATA, 12, {"topics": None})
            for _ in range(4):
                await asyncio.sleep(20)
                assert await lives(other)
            assert server_sees(running.server) == 1

    simulate(1, main)
