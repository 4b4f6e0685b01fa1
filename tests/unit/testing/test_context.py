"""Callbacks of a simulated connection run in the context of the side they belong to."""

from __future__ import annotations

import asyncio
import contextvars

from onceflow.testing.world import World, run


def test_context_variables_stay_on_their_side() -> None:
    who = contextvars.ContextVar("who", default="nobody")

    async def main(world: World) -> list[str]:
        seen: list[str] = []

        class Witness(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                seen.append(who.get())

            def data_received(self, data: bytes) -> None:
                seen.append(who.get())

            def connection_lost(self, exc: Exception | None) -> None:
                seen.append(who.get())

        async def serve() -> None:
            who.set("server")
            await world.net.host("b").listen("b", 1, Witness)

        async def dial() -> None:
            who.set("client")
            transport, _ = await world.net.host("a").connect("b", 1, asyncio.Protocol)
            transport.write(b"hello")
            transport.close()
            await asyncio.sleep(30)

        await asyncio.create_task(serve())
        await asyncio.create_task(dial())
        return seen

    assert run(1, main)[0] == ["server"] * 3
