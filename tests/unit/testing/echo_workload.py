"""A small request and response workload under faults, for the determinism tests.

Run as a program it prints the trace hash of each seed, so that processes can be compared.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from onceflow.testing.connection import TappedWrite
from onceflow.testing.faults import Deliver, NetFaults, Redeliver, Side, TapAction
from onceflow.testing.world import World, run

CLIENTS = 4
REQUESTS = 6
SIZE = 16
FAULTS = NetFaults(
    delay_s=(0.001, 0.3),
    split_chance=0.3,
    dribble_chance=0.3,
    refuse_chance=0.1,
    reset_chance=0.03,
    half_close_chance=0.02,
    lose_response_chance=0.03,
)


@dataclass(slots=True)
class Outcome:
    """What an observer outside saw."""

    served: list[bytes]
    answered: list[bytes]
    failures: list[str]


class Server(asyncio.BufferedProtocol):
    """Answers each request of SIZE bytes with itself, after a while."""

    def __init__(self, world: World, outcome: Outcome) -> None:
        self._world = world
        self._outcome = outcome
        self._buffer = bytearray(64)
        self._pending = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._pending += self._buffer[:nbytes]
        while len(self._pending) >= SIZE:
            request = bytes(self._pending[:SIZE])
            del self._pending[:SIZE]
            self._outcome.served.append(request)
            self._world.loop.call_later(0.05, self._transport.write, request)


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending = bytearray()

    def data_received(self, data: bytes) -> None:
        self._pending += data
        if len(self._pending) == SIZE and not self.answer.done():
            self.answer.set_result(bytes(self._pending))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc or ConnectionAbortedError("ended early"))
            self.answer.exception()


async def ask(world: World, name: str, request: bytes) -> bytes:
    transport, client = await world.net.host(name).connect("server", 9092, Client)
    try:
        transport.write(request)
        async with asyncio.timeout(5):
            return await client.answer
    finally:
        transport.close()


async def client(world: World, number: int, outcome: Outcome) -> None:
    rand = world.rand.fork(f"client {number}")
    for request in range(REQUESTS):
        body = f"{number:02}/{request:02}".encode().ljust(SIZE, b".")
        while True:
            try:
                outcome.answered.append(await ask(world, f"client{number}", body))
                break
            except (OSError, TimeoutError) as error:
                outcome.failures.append(type(error).__name__)
                await asyncio.sleep(rand.uniform(0.0, 0.5))


def sometimes_twice(write: TappedWrite) -> list[TapAction]:
    if write.direction is Side.CLIENT and write.data.startswith(b"01/"):
        return [Deliver(write.data), Redeliver(write.data, after_s=3.0)]
    return [Deliver(write.data)]


async def main(world: World) -> Outcome:
    outcome = Outcome([], [], [])
    await world.net.host("server").listen("server", 9092, lambda: Server(world, outcome))
    world.net.tap(sometimes_twice)
    world.loop.call_later(1.0, world.net.partition, "client2", "server")
    world.loop.call_later(9.0, world.net.join, "client2", "server")
    world.net.slow_down("client3", "server", 100.0)
    await asyncio.gather(*(client(world, number, outcome) for number in range(CLIENTS)))
    world.net.heal()
    await asyncio.sleep(100.0)
    return outcome


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        print(run(seed, main, faults=FAULTS)[1])
