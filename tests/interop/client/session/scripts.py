"""What is asked of sessions on each broker: the scripts themselves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.codec.transactions import GroupMember
from onceflow.client.session.clients import SessionConsumer
from onceflow.client.session.errors import BatchRefused, SessionFenced
from onceflow.types import TopicPartition
from tests.interop.client.consumer.polled_consumers import Script
from tests.interop.client.session.copying_sessions import Copying, OnItsOwnLoop
from tests.interop.harness import Names, Transcript

SECONDS = 60.0


async def loops(admin: Admin, names: Names, transcript: Transcript) -> None:
    """Batches, an exception, a second start, dead letters; offsets are the input's."""
    world = Copying(names)
    await world.prepare(admin, 10)

    async def fail() -> None:
        async with world.session(max_poll_records=3) as session:
            async for batch, txn in session:
                await txn.send_table(world.out, batch.table().select(["value"]))
                if next(iter(batch)).offset == 3:
                    raise KeyError("the second batch")

    with pytest.raises(KeyError, match="the second batch"):
        await fail()
    transcript.note("after an exception", await asyncio.to_thread(world.visible))
    transcript.note("offsets", await world.offsets(admin))
    async with world.session(dead_letter_topic=world.dead) as session:
        seen = 3
        async for batch, txn in session:
            for record in batch:
                if record.offset % 2:
                    await txn.dead_letter(record, ValueError("odd"))
                else:
                    await txn.send(world.out, record.value)
            seen += len(batch)
            if seen == 10:
                break
    transcript.note("at the end", await asyncio.to_thread(world.visible))
    transcript.note("dead letters", await asyncio.to_thread(world.visible, world.dead))
    transcript.note("offsets at the end", await world.offsets(admin))


async def shared_transactions(admin: Admin, names: Names, transcript: Transcript) -> None:
    """With an interval several polls are one transaction, which ends also when nothing comes."""
    world = Copying(names)
    await world.prepare(admin, 10)
    async with world.session(
        max_poll_records=1, commit_interval_ms=30_000, commit_max_records=5
    ) as session:
        seen = 0
        async for batch, txn in session:
            if seen == 5:
                # Apache Kafka answers a commit before everybody can see it.
                await until_committed(world, admin, 5)
            if seen in (4, 5, 9):
                transcript.note(f"before {seen + 1}", await world.offsets(admin))
            for record in batch:
                await txn.send(world.out, record.value)
            seen += 1
            if seen == 10:
                break
    transcript.note("at the end", await asyncio.to_thread(world.visible))
    async with world.session(commit_interval_ms=200) as session:
        waiting = asyncio.create_task(world.copy(session, 2))
        await world.write(1)
        async with asyncio.timeout(SECONDS):
            while await world.offsets(admin) != [11]:
                await asyncio.sleep(0.02)
        assert not waiting.done()
        await world.write(1)
        transcript.note("handed out", await waiting)
    assert world.visible() == world.expected()


async def taken_over(admin: Admin, names: Names, transcript: Transcript) -> None:
    """A second session of the same instance ends the first one, and what that had open."""
    world = Copying(names)
    await world.prepare(admin, 4)
    async with world.session(instance="a", max_poll_interval_ms=700) as old:
        _, txn = await anext(old)
        receipt = await txn.send(world.out, b"1000")
        await receipt
        async with world.session(instance="a") as new:
            transcript.note("copied", await world.copy(new, 4))
            with pytest.raises(SessionFenced) as told:
                await anext(old)
            transcript.note("told", names.hide(str(told.value)))
    transcript.note("visible", await asyncio.to_thread(world.visible))


async def left_open(admin: Admin, names: Names, transcript: Transcript) -> None:
    """What a dead session has left open holds readers back until its timeout, or until a session
    of the same instance starts, whichever comes first."""
    world = Copying(names)
    await world.prepare(admin, 4)
    dead = world.session(instance="a", max_poll_interval_ms=500)
    await dead.start()
    _, txn = await anext(dead)
    await (await txn.send(world.out, b"1000", partition=0))
    place = TopicPartition(world.out, 0)
    held = (await admin.offset_ranges([place], read_committed=True))[place].latest
    transcript.note("readers see up to", held)
    async with world.session(instance="a") as heir:
        ends = (await admin.offset_ranges([place], read_committed=True))[place].latest
        transcript.note("and when it is back", ends > held)
        transcript.note("copied", await world.copy(heir, 4))
    await dead.close(commit=False)
    transcript.note("visible", await asyncio.to_thread(world.visible))


async def refusals(admin: Admin, names: Names, transcript: Transcript) -> None:
    """What is refused however often it is sent ends the session, and says so."""
    world = Copying(names)
    await world.prepare(admin, 2)

    async def too_large() -> None:
        async with world.session(max_request_size=8 << 20) as session:
            async for _, txn in session:
                await txn.send(world.out, bytes(2 << 20))

    with pytest.raises(BatchRefused) as told:
        await too_large()
    transcript.note("too large", "MESSAGE_TOO_LARGE" in str(told.value))
    transcript.note("offsets", await world.offsets(admin))
    async with world.session() as session:
        transcript.note("again", await world.copy(session, 2))


async def many(admin: Admin, names: Names, transcript: Transcript) -> None:
    """Members come and go while records flow; everything is copied once."""
    world = Copying(names, partitions=4)
    await world.prepare(admin, 200)
    stopped: list[str] = []

    async def member(instance: str, **settings: Any) -> None:
        async with world.session(instance=instance, max_poll_records=7, **settings) as session:
            async for batch, txn in session:
                for record in batch:
                    await txn.send(world.out, record.value, partition=record.partition)
                await asyncio.sleep(0.01)
                if instance in stopped:
                    session.stop()

    for strategy in ("range", "cooperative-sticky"):
        how = {"partition_assignment_strategy": strategy}
        tasks = {name: asyncio.create_task(member(name, **how)) for name in ("a", "b")}
        for coming, going in (("c", "a"), ("d", "b"), ("e", "c")):
            tasks[coming] = asyncio.create_task(member(coming, **how))
            await world.write(100)
            await until_committed(world, admin)
            stopped.append(going)
            await world.write(40)
            await asyncio.wait_for(tasks.pop(going), SECONDS)
        await until_committed(world, admin)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        stopped.clear()
        transcript.note(strategy, await asyncio.to_thread(world.visible) == world.expected())


async def until_committed(world: Copying, admin: Admin, count: int | None = None) -> None:
    """So many records, or all."""
    wanted = len(world.expected()) if count is None else count
    async with asyncio.timeout(SECONDS):
        while sum(await world.offsets(admin)) < wanted:
            await asyncio.sleep(0.02)


def frozen(names: Names, transcript: Transcript, *, fenced: bool) -> None:
    """A member stands still, as a whole, in the midst of its transaction. The group goes on without
    it, and its partition is with a member of another transactional id, which does the work. Then it
    wakes up, and commits."""
    world = Copying(names)
    at_work, go_on = threading.Event(), threading.Event()

    class Unfenced(SessionConsumer):
        def group_metadata(self) -> GroupMember:
            return GroupMember(world.group_id)

    async def one() -> None:
        session = world.session(instance="frozen", max_poll_interval_ms=1_000)
        if not fenced:
            session._consumer.__class__ = Unfenced
        async with session:
            async for batch, txn in session:
                for record in batch:
                    await (await txn.send(world.out, record.value))
                at_work.set()
                assert go_on.wait(SECONDS)  # and with it the whole loop
                session.stop()

    async def prepare() -> None:
        async with Admin(names.bootstrap) as admin:
            await world.prepare(admin, 5)

    async def other() -> None:
        # The group waits as long for one that stands still as the most patient member allows.
        async with world.session(instance="other", max_poll_interval_ms=1_000) as session:
            transcript.note("the other one copies", await world.copy(session, 5))

    asyncio.run(prepare())
    standing = OnItsOwnLoop(one)
    assert at_work.wait(SECONDS)
    asyncio.run(other())
    go_on.set()
    standing.end()
    visible = world.visible()
    transcript.note("visible", visible)
    assert (visible == world.expected()) is fenced


def rebalance_inside_a_transaction(bootstrap: str, names: Names, transcript: Transcript) -> None:
    frozen(names, transcript, fenced=True)


def the_same_without_the_generation(bootstrap: str, names: Names, transcript: Transcript) -> None:
    frozen(names, transcript, fenced=False)


SCRIPTS: tuple[Script, ...] = (
    loops,
    shared_transactions,
    taken_over,
    left_open,
    refusals,
    many,
)
