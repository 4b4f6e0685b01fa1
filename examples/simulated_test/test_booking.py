"""Kills the program at moments that a seed chooses, and counts what it has booked."""

from __future__ import annotations

import asyncio

import pytest
from booking import book

from onceflow.testing import SimBroker, SimProcess, World, run

PAYMENTS = [b"payment %d" % number for number in range(40)]
KILLS = 3


async def killed_now_and_then(world: World) -> list[bytes]:
    """What readers see in the end."""
    broker = SimBroker(world)
    await broker.start()
    customer = SimProcess(world, "customer")
    async with customer.admin(broker.bootstrap) as admin:
        await admin.create_topic("payments", partitions=1)
        await admin.create_topic("bookings", partitions=1)

    async def pay() -> None:
        async with customer.producer(broker.bootstrap) as producer:
            for payment in PAYMENTS:
                await producer.send("payments", payment)
                await asyncio.sleep(0.05)

    paying = customer.start(pay())
    booking = SimProcess(world, "booking")
    for _ in range(KILLS):
        booking.start(book(broker.bootstrap, **booking.client_options))
        await asyncio.sleep(world.rand.uniform(0.0, 2.0))
        booking.kill()
    booking.start(book(broker.bootstrap, **booking.client_options))
    await paying
    # The group gives up on the members that were killed, the broker on their transactions. Two
    # minutes of the world take no time.
    await asyncio.sleep(120)
    booking.kill()

    auditor = SimProcess(world, "auditor")
    async with auditor.consumer(broker.bootstrap, auto_offset_reset="earliest") as reader:
        await reader.assign(["bookings"])
        booked: list[bytes] = []
        while records := await reader.poll(1.0):
            booked += [record.value or b"" for record in records]
    return booked


@pytest.mark.parametrize("seed", range(20))
def test_each_payment_is_booked_once(seed: int) -> None:
    booked, _ = run(seed, killed_now_and_then)
    assert booked == PAYMENTS
