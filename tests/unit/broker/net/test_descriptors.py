"""A broker with few descriptors: what it gives to whom, and what it says when none is left."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config.settings import BrokerConfig
from onceflow.broker.net.descriptors import share_out
from onceflow.broker.server import Runtime, Server
from onceflow.errors import DiskFailed, OutOfDescriptors
from onceflow.runtime import net
from onceflow.runtime.background import Threads
from onceflow.runtime.clock import RealClock
from onceflow.runtime.descriptors import NO_LIMIT, descriptor_limit, raise_descriptor_limit
from onceflow.runtime.disk import Access, Disk, RealDisk
from onceflow.runtime.net import RealNet
from onceflow.runtime.rand import RealRand
from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World
from tests.unit.broker.broker_under_test import (
    LOOPS,
    LoopFactory,
    RawClient,
    Running,
    batch,
    broker,
    config,
    play,
    round_trip,
    run,
    values_in,
)

# --- shares -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 1 << 20, NO_LIMIT])
@pytest.mark.parametrize("wanted", [1, 50, 1000, 100_000])
def test_what_is_given_away_fits_into_the_limit(limit: int, wanted: int) -> None:
    settings = BrokerConfig(data_dir=Path("data"), max_connections=wanted)
    shares = share_out(limit, settings)
    assert 1 <= shares.connections <= wanted
    assert shares.files >= limit // 4
    assert 2 * shares.connections + shares.files + min(limit // 4, 64) <= limit


def test_connections_get_what_is_configured_where_there_is_enough() -> None:
    assert share_out(1024, BrokerConfig(data_dir=Path("data"))).connections < 500
    assert share_out(1024, BrokerConfig(data_dir=Path("data"), max_connections=100))[0] == 100
    assert share_out(65536, BrokerConfig(data_dir=Path("data"))).connections == 1000


def test_the_limit_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(64, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert descriptor_limit() == 64
    assert raise_descriptor_limit() == 4096
    limits.append((64, resource.RLIM_INFINITY))
    assert raise_descriptor_limit() == NO_LIMIT


def test_a_hard_limit_that_is_not_granted_leaves_the_soft_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_descriptor_limit() == 64


def test_a_connection_too_many_is_closed_and_the_log_says_what_to_raise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        runtime = Runtime(
            RealClock(),
            RealRand(),
            RealNet(),
            RealDisk(tmp_path / "data"),
            Threads(loop.call_soon_threadsafe, loop.call_soon),
            descriptors=100,
        )
        server = Server(config(tmp_path / "data"), runtime)
        running = Running(server, runtime.net, await server.start())
        try:
            most = share_out(100, config(tmp_path / "data")).connections
            clients = [await running.client() for _ in range(most)]
            await round_trip(clients[-1])
            with pytest.raises(ConnectionError):
                await round_trip(await running.client())
            clients[0].close()
            await asyncio.sleep(0.05)
            await round_trip(await running.client())
        finally:
            await server.stop()

    with caplog.at_level(logging.INFO):
        run(main)
    assert "max.connections is 1000, but 100 descriptors (ulimit -n)" in caplog.text


# --- none left ----------------------------------------------------------------------------------


@pytest.fixture(params=["real", "simulated"])
def exhausted_disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Disk:
    """With one directory and one file."""
    disk: Any = RealDisk(tmp_path / "data") if request.param == "real" else SimDisk()
    disk.mkdir("a")
    disk.open("a/file", Access.CREATE)
    if isinstance(disk, SimDisk):
        disk.most_open = 0
    else:

        def refuse(*_: object, **__: object) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, "open", refuse)
        monkeypatch.setattr(os, "scandir", refuse)
    return disk  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "use",
    [
        lambda disk: disk.open("a/file", Access.READ),
        lambda disk: disk.open("a/other", Access.CREATE),
        lambda disk: disk.open("a/file", Access.DIRECT),
        lambda disk: disk.entries("a"),
        lambda disk: disk.sync_dir("a"),
    ],
)
def test_to_have_no_descriptor_is_not_to_have_a_failed_disk(
    exhausted_disk: Disk, use: Callable[[Disk], object]
) -> None:
    with pytest.raises(OutOfDescriptors, match="open files"):
        use(exhausted_disk)
    assert not exhausted_disk.exists("a/other")
    assert not issubclass(OutOfDescriptors, DiskFailed)
    exhausted_disk.unlink("a/file")
    exhausted_disk.rmdir("a")


def test_requests_are_refused_while_there_is_none_and_go_on_afterwards() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        await client.create("others")
        for number in range(4):
            await client.produce("orders", batch(bytes(400_000)))
            assert number == (await client.list_offset("orders", -1))["offset"] - 1
        partition = running.server.node.topics.by_name["orders"].partitions[0]
        assert len(partition.log.segments) > 1
        await asyncio.sleep(1)
        world.disk.most_open = 0
        refused = await client.produce("others", batch(b"x"))
        assert refused["error_code"] == "KAFKA_STORAGE_ERROR"
        assert "open files" in refused["error_message"]
        assert (await client.fetch("orders", 0))["error_code"] == "KAFKA_STORAGE_ERROR"
        assert (await client.list_offset("orders", 5))["error_code"] == "KAFKA_STORAGE_ERROR"
        assert (await client.list_offset("orders", -1))["offset"] == 4
        with pytest.raises(AssertionError, match=r"KAFKA_STORAGE_ERROR.*open files"):
            await client.create("more")
        await asyncio.sleep(30)  # housekeeping goes on, too
        world.disk.most_open = None
        await client.create("more")
        assert (await client.produce("others", batch(b"x")))["base_offset"] == 0
        fetched = await client.fetch("orders", 0)
        assert values_in(fetched["records"])[0] == (0, bytes(400_000))
        assert not running.server.failed.done()

    play(script, topic_defaults={"log.segment.bytes": str(1 << 20)})


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_wait_until_there_is_a_descriptor_for_them(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, none_left = socket.socket.accept, [True]

    def refuse(self: socket.socket) -> Any:
        if none_left[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(self)

    async def main() -> None:
        async with broker(tmp_path) as running:
            monkeypatch.setattr(socket.socket, "accept", refuse)
            monkeypatch.setattr(net, "_RETRY_SECONDS", 0.05)
            clients = [await running.client() for _ in range(5)]
            await asyncio.sleep(0.2)
            none_left[0] = False
            for client in clients:
                await round_trip(client)

    factory: LoopFactory = LOOPS[loop]
    run(main, factory)
    assert "a connection cannot be accepted, trying again" in caplog.text


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_is_served_without_a_descriptor_of_its_own_for_answers(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        async with broker(tmp_path) as running:
            monkeypatch.setattr(os, "dup", refuse)
            client = await running.client()
            await client.create("orders")
            await client.produce("orders", batch(bytes(500_000)))
            fetched = await client.fetch("orders", 0)
            assert values_in(fetched["records"]) == [(0, bytes(500_000))]

    run(main, LOOPS[loop])
