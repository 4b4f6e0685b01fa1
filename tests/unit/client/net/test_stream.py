"""The memory of answers: large ones are not copied, and never overwritten while somebody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

from onceflow.client.address import BrokerAddress
from onceflow.client.net.frames import RequestHead
from onceflow.client.net.stream import Stream
from onceflow.wire.frame import SCRATCH_BYTES
from onceflow.wire.primitives import INT32

HEAD = RequestHead("FETCH", b"", b"", answer_has_tags=False)
LARGE = SCRATCH_BYTES * 2


class Nowhere(asyncio.Transport):
    """Takes all that is written."""

    def write(self, data: object) -> None:
        return None

    def writelines(self, list_of_data: Iterable[object]) -> None:
        return None

    def abort(self) -> None:
        return None


class Peer:
    """Asks, and answers itself."""

    def __init__(self) -> None:
        self.stream = Stream(BrokerAddress("broker", 9092))
        self.stream.connection_made(Nowhere())
        self._asked = 0

    async def answer(self, body: bytes) -> memoryview:
        future = self.stream.ask(HEAD, (b"",), 10.0)
        self._asked += 1
        frame = INT32.pack(len(body) + 4) + INT32.pack(self._asked) + body
        while frame:
            room = self.stream.get_buffer(-1)
            size = min(len(room), len(frame))
            room[:size] = frame[:size]
            self.stream.buffer_updated(size)
            frame = frame[size:]
        return await future


def memory_of(answer: memoryview) -> int:
    return id(cast(object, answer.obj))


def test_answers_stay_what_they_are_while_they_are_held() -> None:
    async def main() -> None:
        peer = Peer()
        sizes = (10, LARGE, 3 * LARGE, SCRATCH_BYTES - 8, LARGE, LARGE + 1, 5, 20 * LARGE, LARGE)
        wanted = [bytes([number]) * size for number, size in enumerate(sizes)]
        held = [await peer.answer(body) for body in wanted]
        assert held == wanted
        parts = [answer[-5:] for answer in held]
        held.clear()  # a part is enough to keep the whole
        for number in range(10):
            await peer.answer(bytes([100 + number]) * LARGE)
        assert parts == [body[-5:] for body in wanted]

    asyncio.run(main())


def test_memory_that_nobody_reads_any_more_is_used_again() -> None:
    async def main() -> None:
        peer = Peer()
        seen = []
        for number in range(20):
            answer = await peer.answer(bytes([number]) * (LARGE - number))
            assert answer == bytes([number]) * (LARGE - number)
            seen.append(memory_of(answer))
            del answer
        assert len(set(seen)) == 2

    asyncio.run(main())


def test_an_answer_cannot_be_written_to() -> None:
    async def main() -> None:
        peer = Peer()
        assert all([(await peer.answer(bytes(size))).readonly for size in (5, LARGE)])

    asyncio.run(main())
