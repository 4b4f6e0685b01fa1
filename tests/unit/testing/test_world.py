"""What users get of the simulator: a broker, programs, and what strikes both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from onceflow import AuthenticationFailed, ClientError, InvalidSetting
from onceflow.testing import (
    NetFaults,
    SimBroker,
    SimProcess,
    SimulationBudgetExceeded,
    SimulationError,
    World,
    crash_images,
    run,
)

T = TypeVar("T")
TOPIC = "orders"


def result(main: Callable[[World], Awaitable[T]], seed: int = 1) -> T:
    return run(seed, main)[0]


async def values_of(process: SimProcess, broker: SimBroker) -> list[bytes | None]:
    async with process.consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
        await consumer.assign([TOPIC])
        found: list[bytes | None] = []
        while records := await consumer.poll(1.0):
            found += [record.value for record in records]
        return found


async def sends_for_ever(process: SimProcess, broker: SimBroker, acked: list[bytes]) -> None:
    async with process.producer(broker.bootstrap) as producer:
        number = 0
        while True:
            value = b"%d" % number
            await (await producer.send(TOPIC, value))
            acked.append(value)
            number += 1
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("strike", ["kill", "cut_power"])
def test_what_was_acknowledged_outlives_the_broker(strike: str) -> None:
    async def main(world: World) -> tuple[list[bytes], list[bytes | None]]:
        broker = SimBroker(world)
        await broker.start()
        app, acked = SimProcess(world, "app"), list[bytes]()
        app.start(sends_for_ever(app, broker, acked))
        await asyncio.sleep(2)
        getattr(broker, strike)()
        app.kill()
        assert not broker.is_running
        assert not app.is_running
        await broker.start()
        values = await values_of(SimProcess(world, "reader"), broker)
        await broker.stop()
        return acked, values

    for seed in range(5):
        acked, values = result(main, seed)
        assert acked
        assert values[: len(acked)] == acked
        assert len(values) <= len(acked) + 1  # at most what was under way


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    async def main(world: World) -> list[bytes]:
        broker = SimBroker(world)
        await broker.start()
        app, acked = SimProcess(world, "app"), list[bytes]()
        app.start(sends_for_ever(app, broker, acked))
        await asyncio.sleep(world.rand.uniform(0, 1))
        app.kill()
        return acked

    assert run(1, main) == run(1, main)
    assert run(1, main)[1] != run(2, main)[1]


def test_a_program_that_is_killed_does_nothing_more_and_lives_again() -> None:
    did: list[str] = []

    async def program(life: str) -> str:
        try:
            await asyncio.sleep(1)
            did.append(life)
        finally:
            did.append(f"{life} tidies up")
        return life

    async def main(world: World) -> str:
        app = SimProcess(world, "app")
        app.start(program("first"))
        await asyncio.sleep(0.5)
        app.kill()
        await asyncio.sleep(10)
        assert did == []
        ended = await app.start(program("second"))
        assert did == ["second", "second tidies up"]
        return ended

    assert result(main) == "second"


def test_a_program_that_is_paused_is_late() -> None:
    async def main(world: World) -> float:
        app = SimProcess(world, "app")

        async def sleeps() -> float:
            await asyncio.sleep(1)
            return world.clock.monotonic()

        task = app.start(sleeps())
        app.pause()
        await asyncio.sleep(30)
        assert app.is_running
        app.resume()
        return await task

    assert result(main) >= 30


def test_two_brokers_on_disks_of_their_own() -> None:
    async def main(world: World) -> int:
        first = SimBroker(world, host="a")
        second = SimBroker(world, host="b", disk=type(world.disk)())
        await first.start()
        await second.start()
        app = SimProcess(world, "app")
        async with app.admin(first.bootstrap) as admin:
            await admin.create_topic(TOPIC)
        async with app.admin(second.bootstrap) as admin:
            return len(await admin.list_topics())

    assert result(main) == 0


def test_settings_go_by_the_names_of_kafka() -> None:
    async def main(world: World) -> int:
        broker = SimBroker(world, {"log.retention.ms": 1000}, num_partitions=3)
        await broker.start()
        async with SimProcess(world, "app").admin(broker.bootstrap) as admin:
            await admin.create_topic(TOPIC)
            return len((await admin.describe_topic(TOPIC)).topic.partitions)

    assert result(main) == 3

    async def wrong(world: World) -> None:
        await SimBroker(world, nun_partitions=3).start()

    with pytest.raises(InvalidSetting, match=r"did you mean 'num\.partitions'"):
        run(1, wrong)


def test_every_image_of_a_crash_can_be_started_from() -> None:
    async def main(world: World) -> int:
        broker = SimBroker(world)
        await broker.start()
        app, acked = SimProcess(world, "app"), list[bytes]()
        app.start(sends_for_ever(app, broker, acked))
        await asyncio.sleep(0.2)
        app.kill()
        broker.kill()
        count = 0
        end = len(broker.disk.ops)
        for image in crash_images(broker.disk, seed=1, subsets=1, first=end):
            broker.start_from(image.disk)
            await broker.start()
            values = await values_of(SimProcess(world, f"reader {count}"), broker)
            assert values[: len(acked)] == acked
            broker.kill()
            count += 1
        return count

    assert result(main) > 1


def test_faults_strike_clients() -> None:
    async def main(world: World) -> bool:
        broker = SimBroker(world)
        await broker.start()
        world.net.set_faults(NetFaults(refuse_chance=1.0))
        try:
            async with SimProcess(world, "app").producer(broker.bootstrap, max_block_ms=1000):
                return False
        except AuthenticationFailed:
            return False
        except ClientError:
            return True

    assert result(main)


def test_misuse_is_named() -> None:
    async def main(world: World) -> None:
        broker, app = SimBroker(world), SimProcess(world, "app")
        with pytest.raises(SimulationError, match="broker on broker is not running"):
            broker.kill()
        await broker.start()
        with pytest.raises(SimulationError, match="broker on broker is running already"):
            await broker.start()
        with pytest.raises(SimulationError, match="broker on broker is running"):
            broker.start_from(world.disk)
        app.start(asyncio.sleep(1))
        with pytest.raises(SimulationError, match="process app is running already"):
            app.start(asyncio.sleep(1))
        app.kill()
        app.kill()
        assert repr(app) == "<SimProcess app: not running>"
        assert repr(broker) == "<SimBroker broker:9092: running>"

    run(1, main)


def test_a_world_has_a_budget() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(8 * 86_400)

    with pytest.raises(SimulationBudgetExceeded):
        run(1, main)
