"""What clients look like in a debugger: where they connect to, as whom, and how they are."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import onceflow
from onceflow import blocking
from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.consumer import Consumer
from onceflow.client.producer.producer import Producer
from onceflow.client.session.session import Session

WHERE = "a:1,b:2"


def test_clients_that_were_not_started() -> None:
    assert repr(Producer(WHERE)) == f"<Producer of {WHERE}, idempotent, not started>"
    assert repr(Producer(WHERE, acks=1, enable_idempotence=False)) == (
        f"<Producer of {WHERE}, acks=1, not started>"
    )
    assert repr(Consumer(WHERE)) == f"<Consumer of {WHERE}, no group, not started>"
    assert repr(Admin(WHERE)) == f"<Admin of {WHERE}>"
    session = Session(WHERE, group_id="g", topics=["t"])
    assert repr(session) == f"<Session of {WHERE}, transactional.id 'g/0', not started>"
    assert (
        repr(blocking.Producer(WHERE)) == f"<blocking.Producer of {WHERE}, idempotent, not started>"
    )
    assert (
        repr(blocking.Consumer(WHERE)) == f"<blocking.Consumer of {WHERE}, no group, not started>"
    )
    assert repr(blocking.Admin(WHERE)) == f"<blocking.Admin of {WHERE}>"


def test_clients_at_work() -> None:
    async def producing(where: str) -> None:
        ours = Producer(where, transactional_id="shop", linger_ms=1_000)
        head = f"<Producer of {where}, transactional.id 'shop'"
        async with ours:
            transaction = ours.transaction()
            assert repr(transaction) == "<Transaction of 'shop', not begun>"
            async with transaction:
                assert repr(ours) == f"{head}, in transaction>"
                assert repr(transaction) == "<Transaction of 'shop', open>"
                receipt = await transaction.send("orders", b"paid")
                assert repr(receipt) == "<Receipt of orders-0, not acknowledged yet>"
            assert repr(receipt) == "<Receipt of orders-0, offset 0>"
            assert repr(transaction) == "<Transaction of 'shop', over>"
        assert repr(ours) == f"{head}, closed>"

    async def reading(where: str) -> None:
        ours = Consumer(where, group_id="g", auto_offset_reset="earliest")
        async with ours:
            assert repr(ours) == f"<Consumer of {where}, group 'g', reads none>"
            ours.subscribe(["orders"])
            await ours.poll(10)
            assert repr(ours) == f"<Consumer of {where}, group 'g', reads orders-0>"
        assert repr(ours) == f"<Consumer of {where}, group 'g', closed>"

    with onceflow.Broker() as broker:
        asyncio.run(producing(broker.bootstrap))
        asyncio.run(reading(broker.bootstrap))
        settings = {"group.id": "s", "auto.offset.reset": "earliest"}
        with blocking.Session(broker.bootstrap, settings, topics=["orders"]) as session:
            _, transaction = next(session)
            assert repr(transaction) == "<blocking.SessionTransaction of 's/0', open>"
            receipt = transaction.send("bills", b"1")
            assert "has handed out a batch" in repr(session)
            assert repr(receipt).startswith("<blocking.Receipt of bills-0")
        assert repr(transaction) == "<blocking.SessionTransaction of 's/0', over>"
        assert repr(session).endswith("'s/0', closed>")


def test_a_transaction_of_a_session_is_no_block() -> None:
    """The session ends it: leaving a block could neither commit nor abort it."""
    with onceflow.Broker() as broker:
        with blocking.Producer(broker.bootstrap) as producer:
            producer.send("orders", b"1")
        settings = {"group.id": "s", "auto.offset.reset": "earliest"}
        with blocking.Session(broker.bootstrap, settings, topics=["orders"]) as session:
            _, transaction = next(session)
            assert not hasattr(transaction, "__enter__")
            assert not hasattr(transaction, "start")
            assert not isinstance(transaction._client, AbstractAsyncContextManager)
