"""What leaves a connection arrives whole and in order, however little the peer takes at once."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.log.partition_log import Span
from onceflow.runtime.disk import Access, RealDisk
from onceflow.runtime.outbox import Part, SocketOutbox
from tests.unit.broker.broker_under_test import LOOPS, LoopFactory, run

LARGE = os.urandom(3 << 20)
SMALL = [b"%d," % number for number in range(600)]


class NeverAborted:
    """A transport that the outbox has no reason to touch."""

    def abort(self) -> None:
        pytest.fail("the connection was given up")


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def loops(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


def span(tmp_path: Path) -> Part:
    file = RealDisk(tmp_path).open("data", Access.CREATE)
    file.pwrite(0, LARGE)
    return Span(file, 5, len(LARGE) - 5)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (lambda _: [b"one"], b"one"),
        (lambda _: [LARGE], LARGE),
        (lambda _: [memoryview(LARGE)], LARGE),
        (lambda _: SMALL, b"".join(SMALL)),
        (lambda _: [*SMALL, LARGE, *SMALL], b"".join(SMALL) + LARGE + b"".join(SMALL)),
        (lambda path: [b"head", span(path), b"tail"], b"head" + LARGE[5:] + b"tail"),
    ],
    ids=["one", "one large", "a view", "many", "many around a large one", "a span"],
)
def test_all_arrives_in_order(
    tmp_path: Path,
    loops: LoopFactory,
    parts: Callable[[Path], list[Part]],
    expected: bytes,
) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        rooms: list[None] = []
        transport: Any = NeverAborted()
        outbox = SocketOutbox(transport, ours, lambda: rooms.append(None))
        outbox.send(parts(tmp_path))
        got = bytearray()
        while len(got) < len(expected):
            got += await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        assert got == expected
        assert not outbox.is_blocked
        assert bool(rooms) == (len(expected) > 1 << 20), "who waited for room is told"
        outbox.close()
        theirs.close()

    run(main, loops)


def test_what_is_sent_now_leaves_now_and_behind_what_waits(loops: LoopFactory) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        transport: Any = NeverAborted()
        outbox = SocketOutbox(transport, ours, lambda: None)
        outbox.send_now([b"at ", b"once"])
        assert theirs.recv(100) == b"at once"
        outbox.send_now([LARGE])
        assert outbox.is_blocked, "the peer has not taken all of it"
        outbox.send_now([b"tail"])
        got = bytearray()
        while len(got) < len(LARGE) + 4:
            got += await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        assert got == LARGE + b"tail"
        outbox.close()
        theirs.close()

    run(main, loops)
