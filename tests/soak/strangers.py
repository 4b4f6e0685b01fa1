"""Connections that want nothing good: half frames, nonsense, silence, and many of all of them."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from contextlib import suppress

from tests.soak.world import World

LARGEST = 4 << 20
MOST_OPEN = 8
_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)


def _frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def greeting(rand: random.Random) -> bytes:
    """A whole request."""
    return _frame(_API_VERSIONS)


def half_a_frame(rand: random.Random) -> bytes:
    """Some megabytes announced, and a part of them."""
    size = rand.randrange(100_000, LARGEST)
    return struct.pack(">i", size) + bytes(rand.randrange(size // 4))


def nonsense(rand: random.Random) -> bytes:
    return _frame(rand.randbytes(rand.randrange(1, 200)))


def endless(rand: random.Random) -> bytes:
    """A frame of a size that nobody takes."""
    return struct.pack(">i", rand.choice((-1, 2**31 - 1))) + bytes(100)


WAYS = (greeting, half_a_frame, half_a_frame, nonsense, endless)


async def come_and_go(world: World) -> None:
    """Connects, says something or nothing, and goes; a few stay for a while, as they are."""
    host, _, port = world.bootstrap.rpartition(":")
    open_ones: deque[asyncio.StreamWriter] = deque()
    async for rand in world.turns("stranger", 0.15):
        _, writer = await asyncio.open_connection(host, int(port))
        if rand.random() < 0.8:
            writer.write(rand.choice(WAYS)(rand))
        with suppress(OSError, TimeoutError):  # the broker may hang up in the middle of it
            await asyncio.wait_for(writer.drain(), 1.0)
        open_ones.append(writer)
        while len(open_ones) > MOST_OPEN or (open_ones and rand.random() < 0.3):
            _hang_up(open_ones.popleft(), rand)
    for writer in open_ones:
        writer.transport.abort()


def _hang_up(writer: asyncio.StreamWriter, rand: random.Random) -> None:
    """In peace or by a reset."""
    if rand.random() < 0.5:
        sock = writer.get_extra_info("socket")
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
