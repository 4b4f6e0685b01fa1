"""Producers on a broker inside the test, in a simulated world."""

from __future__ import annotations

from typing import Any

from onceflow.broker.config.settings import ListenAddress
from onceflow.client.producer.producer import Producer
from onceflow.testing.world import World
from tests.unit.broker import broker_under_test
from tests.unit.broker.broker_under_test import RawClient, Script, values_in

ADDRESS = "broker:9092"


def play(script: Script, **settings: Any) -> None:
    """Clients are sent to where the broker really is."""
    broker_under_test.play(script, advertise=ListenAddress("broker", 9092), **settings)


def producer(world: World, **settings: Any) -> Producer:
    return Producer(
        ADDRESS,
        net=world.net.host("client"),
        clock=world.clock,
        rand=world.rand.fork("producer"),
        **settings,
    )


async def values(client: RawClient, topic: str) -> list[bytes | None]:
    return [value for _, value in values_in((await client.fetch(topic))["records"])]
