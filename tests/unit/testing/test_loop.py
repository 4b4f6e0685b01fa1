"""The simulated loop: virtual time, drawn order, and failing by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from onceflow.testing.loop import (
    SimLoop,
    SimulationBudgetExceeded,
    SimulationCallbackFailed,
    SimulationDeadlock,
    SimulationError,
)
from onceflow.testing.rand import SimRand
from onceflow.testing.world import World, run


def test_an_hour_passes_at_once() -> None:
    async def main(world: World) -> float:
        async with asyncio.timeout(7200):
            for _ in range(60):
                await asyncio.sleep(60)
        return world.clock.monotonic()

    before = time.monotonic()
    elapsed, _ = run(1, main)
    assert elapsed == 3600.0
    assert time.monotonic() - before < 60, "a minute was slept through"


def test_timers_fire_in_order_of_time() -> None:
    async def main(world: World) -> list[float]:
        fired: list[float] = []
        for delay in (5.0, 1.0, 3.0, 2.0, 4.0):
            world.loop.call_later(delay, lambda: fired.append(world.loop.time()))
        world.loop.call_later(2.5, fired.append, 99.0).cancel()
        await asyncio.sleep(10)
        return fired

    assert run(1, main)[0] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_seeds_draw_different_orders_of_tasks_but_keep_that_of_each_object() -> None:
    async def main(world: World) -> tuple[str, ...]:
        seen: list[str] = []

        async def worker(name: str) -> None:
            for step in range(3):
                seen.append(f"{name}{step}")
                await asyncio.sleep(0)

        workers = [worker(name) for name in "abc"]
        log: list[int] = []
        for number in range(10):
            world.loop.call_soon(log.append, number)
        await asyncio.gather(*workers)
        assert log == list(range(10))
        return tuple(seen)

    orders = {run(seed, main)[0] for seed in range(40)}
    assert len(orders) > 20
    for order in orders:
        for name in "abc":
            assert [step for step in order if step[0] == name] == [f"{name}{i}" for i in range(3)]


def test_sets_of_tasks_are_walked_alike_in_every_run() -> None:
    async def main(world: World) -> list[str]:
        ended: list[str] = []

        async def waiter(name: str) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(name)

        async def failing() -> None:
            await asyncio.sleep(1)
            raise ValueError("boom")

        async def group_that_fails() -> None:
            # A task group cancels its tasks by walking a set of them.
            async with asyncio.TaskGroup() as group:
                for number in range(30):
                    group.create_task(waiter(f"w{number}"))
                group.create_task(failing())

        with pytest.raises(ExceptionGroup):
            await group_that_fails()
        done, _ = await asyncio.wait({asyncio.create_task(asyncio.sleep(1)) for _ in range(30)})
        return ended + [task.get_name() for task in done]

    ballast = [bytearray(1000) for _ in range(50)]
    first = run(3, main)
    ballast.clear()
    assert run(3, main) == first


def test_deadlock_names_who_waits() -> None:
    async def main(world: World) -> None:
        lock = asyncio.Lock()
        async with lock:
            await asyncio.gather(
                asyncio.create_task(lock.acquire(), name="second owner"),
                asyncio.create_task(asyncio.sleep(1), name="sleeper"),
            )

    with pytest.raises(
        SimulationDeadlock, match=r"at 1\.000000 s.*: second owner, test.*main#1$"
    ) as raised:
        run(1, main)
    assert "sleeper" not in str(raised.value)


def test_cancelled_timers_do_not_keep_a_deadlock_alive() -> None:
    async def main(world: World) -> None:
        world.loop.call_later(50, print).cancel()
        await world.loop.create_future()

    with pytest.raises(SimulationDeadlock, match=r"at 0\.000000 s"):
        run(1, main)


def test_spinning_spends_the_budget_of_steps() -> None:
    async def main(world: World) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulationBudgetExceeded, match="1000 callbacks"):
        run(1, main, max_steps=1000)


def test_waiting_forever_spends_the_budget_of_time() -> None:
    async def main(world: World) -> None:
        while True:
            await asyncio.sleep(10)

    with pytest.raises(SimulationBudgetExceeded, match="past the limit"):
        run(1, main, max_virtual_seconds=1000)


def test_an_exception_that_no_one_catches_stops_the_run() -> None:
    nothing: dict[str, int] = {}

    async def main(world: World) -> None:
        world.loop.call_later(1, lambda: nothing["absent"])
        await asyncio.sleep(100)

    with pytest.raises(SimulationCallbackFailed, match="KeyError") as raised:
        run(1, main)
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_forgotten_task_that_fails_makes_the_run_fail() -> None:
    async def fail() -> None:
        raise ValueError("unseen")

    async def main(world: World) -> None:
        asyncio.create_task(fail())  # noqa: RUF006  (forgetting it is what is tested)
        await asyncio.sleep(100)

    async def waiting(world: World) -> None:
        asyncio.create_task(fail())  # noqa: RUF006  (forgetting it is what is tested)
        await asyncio.Event().wait()

    with pytest.raises(SimulationCallbackFailed, match="unseen"):
        run(1, main)
    with pytest.raises(SimulationDeadlock) as raised:
        run(1, waiting)
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_failed_task_whose_result_is_asked_for_late_is_no_failure() -> None:
    async def fail() -> None:
        raise ValueError("seen")

    async def main(world: World) -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(100)
        with pytest.raises(ValueError, match="seen"):
            await task

    run(1, main)


def test_threads_and_real_sockets_are_refused() -> None:
    async def main(world: World) -> None:
        with pytest.raises(SimulationError, match="threads"):
            world.loop.call_soon_threadsafe(print)
        with pytest.raises(SimulationError, match="threads"):
            await asyncio.to_thread(time.monotonic)
        with pytest.raises(SimulationError, match="real socket"):
            await world.loop.create_connection(asyncio.Protocol, "127.0.0.1", 1)
        with pytest.raises(SimulationError, match="real socket"):
            await world.loop.create_server(asyncio.Protocol, "127.0.0.1", 0)

    run(1, main)


def test_what_main_leaves_behind_is_unwound() -> None:
    unwound: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            unwound.append("generator")

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(5)
            unwound.append("task")

    async def main(world: World) -> AsyncIterator[int]:
        task = asyncio.create_task(background())
        generator = numbers()
        assert await anext(generator) == 1
        assert not task.done()
        return generator

    generator, _ = run(1, main)
    assert unwound == ["task", "generator"]
    assert generator is not None


def test_main_may_fail_and_its_error_comes_out() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(1, main)


def test_a_closed_loop_takes_no_callbacks() -> None:
    loop = SimLoop(SimRand(1))
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, print)


def test_trace_sink_sees_what_the_hash_sees() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(1)
        world.loop.note("a mark", b"123")

    lines: list[str] = []
    _, with_sink = run(1, main, trace_sink=lines.append)
    assert run(1, main)[1] == with_sink
    assert f"{(1.0).hex()} a mark 3\n" in lines


# --- processes -----------------------------------------------------------------------------------


def test_a_stopped_process_does_nothing_until_it_is_continued() -> None:
    async def main(world: World) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def tick(name: str) -> None:
            for _ in range(4):
                await asyncio.sleep(10)
                seen.append((name, world.loop.time()))

        tasks = [world.loop.spawn(name, tick(name)) for name in ("a", "b")]
        await asyncio.sleep(15)
        world.loop.stop_process("a")
        await asyncio.sleep(100)
        world.loop.continue_process("a")
        await asyncio.gather(*tasks)
        return seen

    seen, _ = run(1, main)
    assert [at for name, at in seen if name == "b"] == [10.0, 20.0, 30.0, 40.0]
    assert [at for name, at in seen if name == "a"] == [10.0, 115.0, 125.0, 135.0]


def test_a_killed_process_does_not_even_tidy_up() -> None:
    async def main(world: World) -> list[str]:
        seen: list[str] = []

        async def work() -> None:
            world.loop.call_later(20, seen.append, "a timer of it")
            try:
                await asyncio.sleep(30)
                seen.append("went on")
            finally:
                seen.append("tidied up")

        world.loop.spawn("worker", work())
        await asyncio.sleep(10)
        world.loop.kill_process("worker")
        await asyncio.sleep(100)
        return list(seen)

    assert run(1, main)[0] == []


def test_when_a_machine_stands_still_all_timers_are_late() -> None:
    async def main(world: World) -> list[float]:
        seen: list[float] = []
        for delay in (5.0, 50.0, 500.0):
            world.loop.call_later(delay, lambda: seen.append(world.loop.time()))
        await asyncio.sleep(1)
        world.loop.stand_still(100)
        await asyncio.sleep(1000)
        return seen

    assert run(1, main)[0] == [101.0, 101.0, 500.0]
