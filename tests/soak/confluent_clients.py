"""Load by a client that others wrote (confluent-kafka), in threads: every call of it blocks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.soak.ledger import RecordName
from tests.soak.own_clients import RECORDS
from tests.soak.world import ABANDONED, PARTITIONS, PAYMENTS, UNREAD, VISITS, World

SECONDS = 30.0
TRANSACTIONS_OF_ONE = 6
ABANDONED_AFTER_MS = 3000


def _settings(world: World, **more: object) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {"bootstrap.servers": world.bootstrap, "log_level": 0, **named}


def _sent(producer: Any, *arguments: object, **options: object) -> None:
    producer.produce(*arguments, **options)
    producer.poll(0)


async def pay_as_many(world: World) -> None:
    """Producers with transactional ids of their own, a few transactions each."""
    name = "confluent transactional id"
    async for rand in world.turns(name, 1.5):
        who = f"confluent-{world.counts[name]}"
        for number, commit in enumerate(await asyncio.to_thread(_pay, world, who, rand), start=1):
            if commit:
                world.ledger.committed(who, number, RECORDS)
            else:
                world.ledger.aborted(who, number)


def _pay(world: World, who: str, rand: random.Random) -> list[bool]:
    """All transactions of one producer, from its first day to its last; which were committed."""
    producer = Producer(_settings(world, transactional_id=who))
    producer.init_transactions(SECONDS)
    outcomes = [rand.random() < 0.75 for _ in range(TRANSACTIONS_OF_ONE)]
    for number, commit in enumerate(outcomes, start=1):
        producer.begin_transaction()
        for index in range(RECORDS):
            value = RecordName.encode(who, number, index)
            _sent(producer, PAYMENTS, value, partition=rand.randrange(PARTITIONS))
            _sent(producer, UNREAD, value, partition=1)
        if commit:
            producer.commit_transaction(SECONDS)
        else:
            producer.flush(SECONDS)
            producer.abort_transaction(SECONDS)
    return outcomes


async def abandon(world: World) -> None:
    """Transactions that nobody ends: the broker does, when their time is over."""
    async for _ in world.turns("abandoned transaction", 2.0):
        who = f"abandoned-{world.counts['abandoned transaction']}"
        await asyncio.to_thread(_abandon, world, who)


def _abandon(world: World, who: str) -> None:
    settings = _settings(
        world, transactional_id=who, transaction_timeout_ms=ABANDONED_AFTER_MS, linger_ms=0
    )
    producer = Producer(settings)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    _sent(producer, ABANDONED, b"never", partition=0)
    producer.flush(SECONDS)


async def _in_thread(
    world: World, name: str, seconds: float, act: Callable[[World, str], None]
) -> None:
    async for _ in world.turns(name, seconds):
        await asyncio.to_thread(act, world, f"{name}-{world.counts[name]}")


async def visit(world: World) -> None:
    """Producers that come, write a little, and never come again."""
    await _in_thread(world, "confluent visitor", 0.7, _visit)


def _visit(world: World, who: str) -> None:
    producer = Producer(_settings(world, enable_idempotence=True, linger_ms=0))
    for _ in range(3):
        _sent(producer, VISITS, who.encode() * 20)
    producer.flush(SECONDS)


async def join(world: World) -> None:
    """Groups that come, read a little, commit, and go, and are deleted."""
    await _in_thread(world, "confluent group", 1.5, _join)


def _join(world: World, group: str) -> None:
    consumer = Consumer(
        _settings(world, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)
    )
    consumer.subscribe([VISITS])
    try:
        for _ in range(30):
            found = consumer.consume(20, 0.2)
            if found:
                consumer.commit(asynchronous=False)
                break
    finally:
        consumer.close()
    if found:
        admin = AdminClient(_settings(world))
        admin.delete_consumer_groups([group])[group].result(SECONDS)
