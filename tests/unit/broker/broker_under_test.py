"""A broker inside a test, and clients that speak to it frame by frame.

On the real network and a real disk, or in a simulated world; the clients are the same. Requests
are made from plain mappings and answers become plain mappings, as in
tests/interop/broker/raw/raw_client.py.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import uvloop

from onceflow.broker.config.settings import BrokerConfig, ListenAddress
from onceflow.broker.server import Runtime, Server
from onceflow.records.batch import NewBatch, iter_stored
from onceflow.records.plain import PlainRecord, read_records, write_records
from onceflow.runtime.background import Background, Threads
from onceflow.runtime.clock import Clock, RealClock
from onceflow.runtime.disk import Disk, RealDisk
from onceflow.runtime.net import Net, RealNet
from onceflow.runtime.rand import RealRand
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey, is_flexible
from onceflow.wire.codec import encode
from onceflow.wire.header import request_header
from tests.interop.broker.raw.raw_client import make_request, plain
from tests.property.wire.any_message import Kind, their_reading

T = TypeVar("T")
Fields = Mapping[str, Any]
SECONDS = 20.0
"""How long anything in a test may take before it has failed."""
SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}
ALL_TOPICS = {"topics": None, "allow_auto_topic_creation": False}
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, LoopFactory] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


# --- brokers -------------------------------------------------------------------------------------


class Running:
    """A broker that serves."""

    def __init__(self, server: Server, net: Net, address: ListenAddress) -> None:
        self.server = server
        self.net = net
        self.address = address

    async def client(self, name: str = "test") -> RawClient:
        return await RawClient.connect(self.net, self.address, name)


def config(data_dir: Path | None = None, **settings: Any) -> BrokerConfig:
    """Small files and few partitions, so that a start costs little."""
    small = {
        "data_dir": data_dir or Path("simulated"),
        "listen": ListenAddress("127.0.0.1", 0),
        "offsets_topic_num_partitions": 2,
        "transaction_state_log_num_partitions": 2,
        "reserve_bytes": 0,
        "journal_first_file_bytes": 64 << 10,
    }
    return BrokerConfig(**{**small, **settings})


@asynccontextmanager
async def broker(
    tmp_path: Path,
    *,
    disk: Disk | None = None,
    background: Background | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """On the real network; on the real disk too unless another one is given."""
    loop = asyncio.get_running_loop()
    net = RealNet()
    runtime = Runtime(
        clock or RealClock(),
        RealRand(),
        net,
        disk or RealDisk(tmp_path / "data"),
        background or Threads(loop.call_soon_threadsafe, loop.call_soon),
    )
    server = Server(config(tmp_path / "data", **settings), runtime)
    address = await server.start()
    try:
        yield Running(server, net, address)
    finally:
        await server.stop()


@asynccontextmanager
async def simulated_broker(
    world: World,
    *,
    host: str = "broker",
    disk: Disk | None = None,
    background: Background | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """On the network and the disk of a simulated world; stopped in an orderly way at the end."""
    runtime = Runtime(
        world.clock,
        world.rand.fork(host),
        world.net.host(host),
        disk or world.disk,
        background or world.background,
    )
    server = Server(config(listen=ListenAddress("localhost", 9092), **settings), runtime)
    await server.start()
    try:
        yield Running(server, world.net.host("client"), ListenAddress(host, 9092))
    finally:
        await server.stop()


def run(
    main: Callable[[], Awaitable[T]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Runs a test's coroutine; one that hangs fails."""

    async def limited() -> T:
        try:
            async with asyncio.timeout(3 * SECONDS):
                return await main()
        finally:
            for client in _clients.pop(asyncio.get_running_loop(), ()):
                client.close()
            await asyncio.sleep(0)  # a transport that ends tells so in the next turn
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(limited())


Script = Callable[[World, Running, "RawClient"], Awaitable[None]]


def play(script: Script, **settings: Any) -> None:
    """Runs a script against a broker of its own, in virtual time."""

    async def main(world: World) -> None:
        async with simulated_broker(world, **settings) as running:
            await script(world, running, await running.client())

    simulate(7, main)


# --- clients -------------------------------------------------------------------------------------


_clients: dict[asyncio.AbstractEventLoop, list[RawClient]] = {}
"""Those on real sockets, by the loop they run on: closed when the test, or its thread, ends."""


class RawClient(asyncio.Protocol):
    """Sends requests and takes answers, in the order in which they come."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frames: deque[bytes] = deque()
        self.is_lost = False
        self.patience = SECONDS
        self._correlation_id = 0
        self._expected: deque[int] = deque()
        self._buffer = bytearray()
        self._news = asyncio.Event()

    @classmethod
    async def connect(cls, net: Net, address: ListenAddress, name: str) -> RawClient:
        _, client = await net.connect(*address, lambda: cls(name))
        if isinstance(net, RealNet):
            _clients.setdefault(asyncio.get_running_loop(), []).append(client)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">i", self._buffer)
            if len(self._buffer) < 4 + size:
                break
            self.frames.append(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._news.set()

    def close(self) -> None:
        self.transport.abort()

    # --- what a client says

    def send(self, key: ApiKey, version: int, fields: Fields, *, answered: bool = True) -> None:
        body = encode(make_request(key, version, fields))
        self.send_body(key, version, body, answered=answered)

    def send_body(self, key: ApiKey, version: int, body: bytes, *, answered: bool = True) -> None:
        self._correlation_id += 1
        if answered:
            self._expected.append(self._correlation_id)
        frame = request_header(key, version, self._correlation_id, self.name) + body
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        self.transport.write(data)

    # --- what it hears

    async def receive_frame(self) -> bytes:
        """The next answer, header and all; `ConnectionError` when none comes any more."""
        async with asyncio.timeout(self.patience):
            while not self.frames:
                if self.is_lost:
                    raise ConnectionResetError("the broker closed the connection")
                self._news.clear()
                await self._news.wait()
        return self.frames.popleft()

    async def receive(self, key: ApiKey, version: int) -> Any:
        """The next answer, which is to the oldest request that has none."""
        frame = await self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        assert correlation_id == self._expected.popleft(), "answers come in order"
        has_tags = is_flexible(key, version) and key is not ApiKey.API_VERSIONS
        body = frame[5 if has_tags else 4 :]
        return plain(their_reading(Kind(key, version, "response").message, body))

    async def ask(self, key: ApiKey, version: int, fields: Fields) -> Any:
        self.send(key, version, fields)
        return await self.receive(key, version)

    async def closed(self) -> None:
        """Returns when the broker has closed the connection."""
        async with asyncio.timeout(SECONDS):
            while not self.is_lost:
                self._news.clear()
                await self._news.wait()

    # --- what tests ask for often

    async def create(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        """Makes a topic; dots in the names of configs are written as underscores."""
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        fields = {"topics": [{**topic, "assignments": [], "configs": rows}], "timeout": 1000}
        answer = (await self.ask(ApiKey.CREATE_TOPICS, 7, fields))["topics"][0]
        assert answer["error_code"] == "NONE", answer
        return UUID(answer["topic_id"])

    async def produce(self, topic: str, records: bytes | None, **options: Any) -> Any:
        """What Produce answers for the one partition."""
        self.send(ApiKey.PRODUCE, 9, produce_fields(topic, records, **options))
        return produced(await self.receive(ApiKey.PRODUCE, 9))

    async def fetch(self, topic: str, offset: int = 0, **options: Any) -> Any:
        """What Fetch answers for the one partition."""
        self.send(ApiKey.FETCH, 12, fetch_fields(topic, offset, **options))
        return fetched(await self.receive(ApiKey.FETCH, 12))

    async def list_offset(self, topic: str, timestamp: int, **more: Any) -> Any:
        part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1, **more}
        fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}]}
        more_fields = {"isolation_level": 0, "timeout": 1000}
        answer = await self.ask(ApiKey.LIST_OFFSETS, 11, fields | more_fields)
        return answer["topics"][0]["partitions"][0]


def produced(answer: Any) -> Any:
    return answer["responses"][0]["partition_responses"][0]


def fetched(answer: Any) -> Any:
    return answer["responses"][0]["partitions"][0]


def produce_fields(
    topic: str, records: bytes | None, *, acks: int = -1, partition: int = 0
) -> Fields:
    topics = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    return {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": topics}


def fetch_fields(
    topic: str | UUID,
    offset: int,
    *,
    partitions: Sequence[int] = (0,),
    epoch: int = -1,
    partition_max_bytes: int = 1 << 20,
    **more: Any,
) -> Fields:
    parts = [
        {
            "partition": partition,
            "current_leader_epoch": epoch,
            "fetch_offset": offset,
            "partition_max_bytes": partition_max_bytes,
        }
        for partition in partitions
    ]
    asked = {"topic": topic, "topic_id": topic, "partitions": parts}
    waits = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 24}
    return {**waits, "topics": [asked], **more}


NOW_MS = 1_700_000_000_000


def values_in(records: bytes) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record that a fetch brought."""
    return [
        (stored.header.base_offset + number, record.value)
        for stored in iter_stored(records)
        for number, record in enumerate(read_records(stored))
    ]


def batch(*values: bytes | None, key: bytes | None = b"k", timestamp: int = NOW_MS) -> bytes:
    """An uncompressed batch as a client sends it."""
    return bytes(made(*values, key=key, timestamp=timestamp).buffer)


def made(*values: bytes | None, key: bytes | None = b"k", timestamp: int = NOW_MS) -> NewBatch:
    return write_records([PlainRecord(key, value) for value in values], timestamp)


def open_sockets() -> int:
    """Descriptors of this process that are sockets."""
    return sum(
        str(each.readlink()).startswith("socket:")
        for each in Path("/proc/self/fd").iterdir()
        if each.is_symlink()
    )


def small_buffers(client: RawClient) -> None:
    """The kernel keeps little for a client, so that what it does not read stays with the broker."""
    sock: Any = client.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)


async def round_trip(client: RawClient) -> None:
    """Whatever another client asked for before this has been read by the broker."""
    answer = await client.ask(ApiKey.API_VERSIONS, 3, SOFTWARE)
    assert answer["error_code"] == "NONE"
