"""One connection to a broker by script, which may answer byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

from onceflow.runtime.net import Net
from onceflow.testing.faults import NetFaults
from onceflow.testing.world import World, run
from tests.unit.client.scripted_broker import (
    metadata,
)

ALL_TOPICS = MetadataRequest(topics=None, include_topic_authorized_operations=False)


Program = Callable[[Net, Net], Awaitable[None]]


def simulate(program: Program, faults: NetFaults | None = None) -> None:
    """Runs a program that is given the network of a client and that of a broker."""

    async def main(world: World) -> None:
        await program(world.net.host("client"), world.net.host("broker"))

    run(1, main, faults=faults)


class Raw(asyncio.Protocol):
    """A peer that says one thing when it is first spoken to, or hangs up."""

    def __init__(self, words: bytes | None) -> None:
        self._words = words
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._words is None:
            self._transport.close()
        else:
            self._transport.write(self._words)
            self._words = b""


def about(name: str) -> Any:
    topics = (MetadataRequestTopic(topic_id=None, name=name),)
    return MetadataRequest(topics=topics, include_topic_authorized_operations=False)


def about_what_was_asked(version: int, request: Any) -> Any:
    return metadata({topic.name: {0: 1} for topic in request.topics})
