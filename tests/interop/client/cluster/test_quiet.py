"""A producer whose partition nobody can take, in a simulated cluster: it asks again, and does not
flood those who are left with questions."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.errors.requests import DeliveryFailed
from onceflow.client.producer.producer import Producer
from onceflow.testing.world import World, run
from onceflow.wire.api import ApiKey
from tests.unit.client.scripted_broker import ADDRESS, listen, metadata

GONE: Final = BrokerAddress("gone", 9092)
NO_LEADER: Final = -1
SECONDS: Final = 20
PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 1000


@pytest.mark.parametrize("leader", [NO_LEADER, 2], ids=["no leader", "a leader that is gone"])
def test_who_leads_is_asked_with_pauses(leader: int) -> None:
    """Pauses double until they are the longest: what is asked more often has none."""

    def leaders(version: int, request: Any) -> Any:
        topics = {each.name: {0: leader} for each in request.topics}
        return metadata(topics, {1: ADDRESS, 2: GONE})

    async def main(world: World) -> None:
        seen = await listen(world.net.host("broker"), {ApiKey.METADATA: leaders})
        async with Producer(
            str(ADDRESS),
            net=world.net.host("client"),
            clock=world.clock,
            rand=world.rand.fork("producer"),
            delivery="at-least-once",
            delivery_timeout_ms=SECONDS * 1000,
            request_timeout_ms=1000,
            retry_backoff_ms=PAUSE_MS,
            retry_backoff_max_ms=LONGEST_PAUSE_MS,
        ) as producer:
            receipt = await producer.send("t", b"nobody takes it")
            with pytest.raises(DeliveryFailed):
                await receipt
        asked = sum(key is ApiKey.METADATA for key, _ in seen)
        assert SECONDS / 4 < asked < 2 * SECONDS

    async def limited(world: World) -> None:
        async with asyncio.timeout(2 * SECONDS):
            await main(world)

    run(1, limited)
