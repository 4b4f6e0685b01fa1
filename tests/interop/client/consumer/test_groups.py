"""Groups of our consumers on both brokers: they come, share, grow, are fenced, oversleep and go;
answers compared."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.consumer import CommitFailed, FencedMember, RebalanceInProgress
from onceflow.client.errors.requests import AbortableError, BrokerError
from onceflow.client.producer.producer import Producer
from onceflow.types import TopicPartition
from tests.interop.client.consumer.polled_consumers import (
    Heard,
    Script,
    members,
    read,
    script,
    until,
    write,
)
from tests.interop.harness import Compare, Names, Transcript

pytestmark = pytest.mark.interop

PARTITIONS = 10


def rows(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def come_and_go(admin: Admin, names: Names, transcript: Transcript) -> None:
    """One, two, five, three members; each record reaches one member, and its offset stays."""
    topic, group_id = names("topic"), names("group")
    await admin.create_topic(topic, partitions=PARTITIONS)
    async with members(
        names.bootstrap, group_id, [topic], partition_assignment_strategy="range"
    ) as group:
        first, second = group.join(), None
        transcript.note("one", await group.settle(PARTITIONS))
        second = group.join()
        transcript.note("two", await group.settle(PARTITIONS))
        for _ in range(3):
            group.join()
        transcript.note("five", await group.settle(PARTITIONS))
        transcript.note("state of five", (await admin.describe_group(group_id)).state)
        await group.leave(first)
        await group.leave(second)
        transcript.note("three", await group.settle(PARTITIONS))
        await write(names.bootstrap, topic, rows(50))
        await until(
            lambda: sum(len(each.received) for each in group.all), lambda count: count >= 50
        )
        got = Counter(record.value for each in group.all for record in each.received)
        assert got == Counter(rows(50))
        await group.stop()
    described = await admin.describe_group(group_id)
    transcript.note("state at the end", described.state)
    transcript.note("offsets", [each.committed for each in described.offsets])


async def strategies(admin: Admin, names: Names, transcript: Transcript) -> None:
    """Two and then one, with each strategy; what the listeners hear."""
    for strategy in ("range", "roundrobin", "cooperative-sticky"):
        topic = names(strategy)
        await admin.create_topic(topic, partitions=5)
        async with members(
            names.bootstrap,
            names(f"{strategy}-group"),
            [topic],
            partition_assignment_strategy=strategy,
            group_instance_id=None,
        ) as group:
            first = group.join()
            await group.settle(5)
            second = group.join()
            transcript.note(f"{strategy}: two", await group.settle(5))
            described = await admin.describe_group(names(f"{strategy}-group"))
            transcript.note(f"{strategy}: strategy", described.protocol)
            await group.leave(second)
            transcript.note(f"{strategy}: one", await group.settle(5))
            heard = [each for each in first.heard.words if each[1]]
            if strategy == "cooperative-sticky":
                # Read on, without a pause, what was its own all the time.
                transcript.note("kept", heard)
                assert [word for word, _ in heard] == ["assigned", "revoked", "assigned"]
                assert second.heard.words[-1][0] == "revoked"
            else:
                assert heard[:2] == [("assigned", [0, 1, 2, 3, 4]), ("revoked", [0, 1, 2, 3, 4])]
            await group.stop()


async def static_members(admin: Admin, names: Names, transcript: Transcript) -> None:
    """An instance that comes back within its session has its partitions again, and nobody else
    hears of it."""
    topic = names("topic")
    await admin.create_topic(topic, partitions=PARTITIONS)
    async with members(names.bootstrap, names("group"), [topic]) as group:
        one = group.join(group_instance_id="one")
        await group.settle(PARTITIONS)
        two = group.join(group_instance_id="two")
        transcript.note("two", await group.settle(PARTITIONS))
        held, heard = two.assignment, len(one.heard.words)
        await group.leave(two)
        transcript.note("while it is away", (await admin.describe_group(names("group"))).state)
        two = group.join(group_instance_id="two")
        transcript.note("back", await group.settle(PARTITIONS))
        transcript.note("the same share", two.assignment == held)
        transcript.note("nobody else heard", len(one.heard.words) == heard)
        await group.stop()


async def fenced(admin: Admin, names: Names, transcript: Transcript) -> None:
    """Two with the same instance id: the older one is told, for good."""
    topic = names("topic")
    await admin.create_topic(topic, partitions=2)
    await write(names.bootstrap, topic, rows(4))
    how: dict[str, Any] = {
        "group_id": names("group"),
        "group_instance_id": "twin",
        "auto_offset_reset": "earliest",
    }
    async with Consumer(names.bootstrap, **how) as old:
        heard = Heard()
        old.subscribe([topic], heard)
        await read(old, 4)
        async with Consumer(names.bootstrap, **how) as new:
            new.subscribe([topic])
            await read(new, 4)
            with pytest.raises(FencedMember) as told:
                await old.commit()
            transcript.note("commit", names.hide(str(told.value)))
            with pytest.raises(FencedMember):
                await old.poll(5)
            with pytest.raises(FencedMember):
                old.group_metadata()
            transcript.note("heard", heard.words)
            await new.commit()
    committed = await admin.committed_offsets(names("group"))
    transcript.note("committed", sorted(committed.values()))


async def overslept(admin: Admin, names: Names, transcript: Transcript) -> None:
    """Who does not poll leaves the group, says so, cannot commit, and comes back with a poll."""
    topic = names("topic")
    await admin.create_topic(topic, partitions=2)
    await write(names.bootstrap, topic, rows(4))
    async with Consumer(
        names.bootstrap,
        group_id=names("group"),
        auto_offset_reset="earliest",
        heartbeat_interval_ms=100,
        max_poll_interval_ms=500,
        enable_auto_commit=False,
    ) as consumer:
        heard = Heard()
        consumer.subscribe([topic], heard)
        await read(consumer, 4)
        while (await admin.describe_group(names("group"))).members:
            await asyncio.sleep(0.02)
        with pytest.raises(CommitFailed) as told:
            await consumer.commit()
        transcript.note("commit", names.hide(str(told.value)))
        again = await read(consumer, 4)
        transcript.note("again", sorted((each.partition, each.offset) for each in again))
        transcript.note("heard", heard.words)
        await consumer.commit()


async def zombies(admin: Admin, names: Names, transcript: Transcript) -> None:
    """A member that the group has forgotten can neither commit nor put offsets into a transaction;
    one that is just asked to join again is told to poll first."""
    topic, group_id = names("topic"), names("group")
    place = TopicPartition(topic, 0)
    await admin.create_topic(topic, partitions=2)
    await write(names.bootstrap, topic, rows(2))
    how: dict[str, Any] = {
        "group_id": group_id,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 100,
    }
    async with (
        Consumer(names.bootstrap, **how) as consumer,
        Producer(names.bootstrap, transactional_id=names("id")) as producer,
        members(names.bootstrap, group_id, [topic]) as group,
    ):
        consumer.subscribe([topic])
        await read(consumer, 2)
        before = consumer.group_metadata()
        joining = group.join()
        await until(lambda: consumer.group_metadata().generation, lambda _: True)
        # The other one waits for us to join, so the commit is still this generation's.
        await consumer.commit({place: 1})
        async with asyncio.timeout(30):
            while not joining.assignment:
                await consumer.poll(0.1)
        transcript.note("generations", consumer.group_metadata().generation - before.generation)
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send(topic, b"made of it", partition=0)
        with pytest.raises(AbortableError) as refused:
            await producer.send_offsets_to_transaction({place: 2}, before)
        transcript.note("old generation", names.hide(str(refused.value)))
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({place: 2}, consumer.group_metadata())
        await producer.commit_transaction()
        transcript.note("new generation", (await consumer.committed([place]))[place].offset)
        await group.stop()


async def growing(admin: Admin, names: Names, transcript: Transcript) -> None:
    """Topics that come later, by name and by pattern, and partitions that are added."""
    first, later = names("shop-one"), names("shop-two")
    await admin.create_topic(first, partitions=1)
    how: dict[str, Any] = {
        "metadata_max_age_ms": 300,
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,  # it is created below, with its partitions
    }
    async with (
        Consumer(names.bootstrap, group_id=names("pattern"), **how) as by_pattern,
        Consumer(names.bootstrap, group_id=names("names"), **how) as by_name,
    ):
        by_pattern.subscribe(pattern=names.prefix.replace(".", "[.]") + "shop-.*")
        by_name.subscribe([first, later])
        for consumer in (by_pattern, by_name):
            while not consumer.assignment:
                await consumer.poll(0.1)
        transcript.note("at first", len(by_pattern.assignment) + len(by_name.assignment))
        await admin.create_topic(later, partitions=2)
        await admin.create_topic(names("other"), partitions=1)
        for consumer in (by_pattern, by_name):
            while len(consumer.assignment) < 3:
                await consumer.poll(0.1)
            transcript.note("later", sorted(map(str, consumer.assignment)))
        await admin.add_partitions(first, 3)
        for consumer in (by_pattern, by_name):
            while len(consumer.assignment) < 5:
                await consumer.poll(0.1)
            transcript.note("grown", sorted(map(str, consumer.assignment)))
        by_name.subscribe([later])
        while len(by_name.assignment) != 2:
            await by_name.poll(0.1)
        await by_pattern.unsubscribe()
        assert not by_pattern.assignment
        state = (await admin.describe_group(names("pattern"))).state
        transcript.note("unsubscribed", state)


async def refused(admin: Admin, names: Names, transcript: Transcript) -> None:
    """What the group does not take is told, with what to do."""
    topic = names("topic")
    await admin.create_topic(topic, partitions=1)
    async with (
        Consumer(names.bootstrap, group_id=names("group")) as one,
        Consumer(
            names.bootstrap,
            group_id=names("group"),
            partition_assignment_strategy="roundrobin",
        ) as other,
        Consumer(names.bootstrap, group_id=names("short"), session_timeout_ms=5_999) as short,
        Consumer(names.bootstrap, group_id=names("group")) as by_hand,
    ):
        for consumer in (one, other, short):
            consumer.subscribe([topic])
        while not one.assignment:
            await one.poll(0.1)
        for label, consumer in (("strategy", other), ("session", short)):
            with pytest.raises(BrokerError) as error:
                await consumer.poll(10)
            transcript.note(label, names.hide(str(error.value)))
        await by_hand.assign([topic])
        with pytest.raises(CommitFailed) as told:
            await by_hand.commit({TopicPartition(topic, 0): 0})
        transcript.note("not a member", names.hide(str(told.value)))
        assert not isinstance(told.value, RebalanceInProgress)


SCRIPTS: tuple[Script, ...] = (
    come_and_go,
    strategies,
    static_members,
    fenced,
    overslept,
    zombies,
    growing,
    refused,
)


@pytest.mark.parametrize("work", SCRIPTS, ids=lambda work: work.__name__)
def test_groups(compare: Compare, work: Script, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="onceflow")
    compare(script(work))
    if work is overslept:
        assert "the consumer has not polled for max.poll.interval.ms = 500" in caplog.text
