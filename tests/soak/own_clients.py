"""Load by our own client: transactions, copies of them, visitors, groups, topics, compaction."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.requests import GroupNotFound
from onceflow.client.producer.producer import Producer
from onceflow.client.session.session import Session
from onceflow.types import TopicPartition
from tests.soak.ledger import RecordName
from tests.soak.world import COPIER, COPIES, PARTITIONS, PAYMENTS, STATE, UNREAD, VISITS, World

RECORDS = 3
"""Of a transaction, in each topic."""
KEYS = 150
COPIER_LIVES_S = 7.0


async def pay(world: World, who: str) -> None:
    """Transactions, a quarter of them aborted; a part of each goes where nobody reads."""
    async with Producer(world.bootstrap, transactional_id=who) as producer:
        await producer.init_transactions()
        async for rand in world.turns(who, 0.12):
            number = world.ledger.begin(who)
            await producer.begin_transaction()
            for index in range(RECORDS):
                value = RecordName.encode(who, number, index)
                await producer.send(PAYMENTS, value, partition=rand.randrange(PARTITIONS))
                await producer.send(UNREAD, value, partition=0)
            if rand.random() < 0.25:
                await producer.flush()
                await producer.abort_transaction()
                world.ledger.aborted(who, number)
            else:
                await producer.commit_transaction()
                world.ledger.committed(who, number, RECORDS)


async def copy(world: World) -> None:
    """Copies what was paid, exactly once; now and then it leaves, and comes again."""
    clock = asyncio.get_running_loop().time
    async for _ in world.turns("copying", 0.2, until=world.readers_stop):
        leaves_at = clock() + COPIER_LIVES_S
        settings = {"group.id": COPIER, "auto.offset.reset": "earliest"}
        async with Session(world.bootstrap, settings, topics=[PAYMENTS]) as session:
            stopping = asyncio.create_task(_stop_at(world, session, leaves_at - clock()))
            async for batch, transaction in session:
                for record in batch:
                    await transaction.send(COPIES, record.value, partition=record.partition)
            await stopping


async def _stop_at(world: World, session: Session, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(world.readers_stop.wait(), seconds)
    session.stop()


async def check(world: World) -> None:
    """Reads what was committed, holds it against the ledger, and deletes what all have read."""
    settings = {"auto.offset.reset": "earliest", "max.poll.records": 2000}
    async with Consumer(world.bootstrap, settings) as consumer:
        await consumer.assign([PAYMENTS, COPIES])
        async for _ in world.turns("checking", 0.25, until=world.readers_stop):
            for record in await consumer.poll(0.2):
                world.ledger.seen(record.topic, record.partition, record.value or b"")
            if world.counts["checking"] % 8 == 0:
                await _delete_what_was_read(world, consumer)


async def _delete_what_was_read(world: World, consumer: Consumer) -> None:
    read = {each: await consumer.position(each) for each in consumer.assignment}
    with suppress(GroupNotFound):
        copied = await world.admin.committed_offsets(COPIER)
        for each in [each for each in read if each.topic == PAYMENTS]:
            read[each] = min(read[each], copied.get(each, 0))
        await world.admin.delete_records({each: at for each, at in read.items() if at})


async def visit(world: World) -> None:
    """Producers that come, write a little, and never come again."""
    async for rand in world.turns("visitor", 0.3):
        async with Producer(world.bootstrap) as producer:
            for _ in range(rand.randint(1, 5)):
                await producer.send(VISITS, rand.randbytes(rand.choice((20, 200, 5000))))


async def join(world: World, name: str) -> None:
    """Groups that come, read a little, commit, and go; the last few are then deleted."""
    gone: deque[str] = deque()
    async for rand in world.turns(name, 0.8):
        group = f"{name}-{world.counts[name]}"
        settings = {"group.id": group, "auto.offset.reset": "earliest", "max.poll.records": 50}
        async with Consumer(world.bootstrap, settings) as consumer:
            consumer.subscribe([VISITS])
            for _ in range(rand.randint(1, 3)):
                await consumer.poll(0.2)
        gone.append(group)
        if len(gone) > 4:
            with suppress(GroupNotFound):  # it had committed nothing
                await world.admin.delete_group(gone.popleft())


async def make_topics(world: World) -> None:
    """Topics that are made, written to, changed and deleted."""
    made: deque[str] = deque()
    async with Producer(world.bootstrap) as producer:
        async for rand in world.turns("topic", 0.7):
            name = f"made-{world.counts['topic']}"
            partitions = rand.randint(1, 3)
            await world.admin.create_topic(name, partitions=partitions)
            made.append(name)
            for partition in range(partitions):
                await producer.send(name, rand.randbytes(100), partition=partition)
            await producer.flush()
            if rand.random() < 0.3:
                await world.admin.add_partitions(name, partitions + 1)
            if rand.random() < 0.3:
                await world.admin.alter_configs(name, changes={"retention.ms": "5000"})
            if len(made) > 3:
                await world.admin.delete_topic(made.popleft())


async def keep_state(world: World) -> None:
    """A compacted topic of a few keys, some of them deleted now and then."""
    async with Producer(world.bootstrap) as producer:
        async for rand in world.turns("state", 0.1):
            for _ in range(20):
                key = b"key %d" % rand.randrange(KEYS)
                value = None if rand.random() < 0.1 else rand.randbytes(60)
                world.state[key] = value
                await producer.send(STATE, value, key=key, partition=0)


async def read_slowly(world: World) -> None:
    """A reader that is far behind, and falls out of what is kept."""
    settings = {"auto.offset.reset": "earliest", "fetch.max.bytes": 2000, "max.poll.records": 3}
    async with Consumer(world.bootstrap, settings) as consumer:
        await consumer.assign([VISITS])
        async for _ in world.turns("slow reader", 1.0):
            await consumer.poll(0.1)


async def state_problems(world: World) -> list[str]:
    """What the compacted topic says, held against what was written last."""
    place = TopicPartition(STATE, 0)
    end = (await world.admin.offset_ranges([place]))[place].latest
    found: dict[bytes, bytes | None] = {}
    async with Consumer(world.bootstrap, auto_offset_reset="earliest") as consumer:
        await consumer.assign([STATE])
        while await consumer.position(place) < end:
            for record in await consumer.poll(1.0):
                found[record.key or b""] = record.value
    return [
        f"{STATE} says {found.get(key)!r} of {key!r}, which was last {value!r}"
        for key, value in world.state.items()
        if found.get(key) != value
    ]
