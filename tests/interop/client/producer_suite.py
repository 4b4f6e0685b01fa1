"""What a producer is checked for on any broker: what it says is there, confluent-kafka reads;
exactly once too. Whoever runs these tests has a fixture `names` for the broker of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition as Place

from onceflow.client.errors.requests import AbortableError, Fenced, TransactionAborted
from onceflow.client.producer.producer import Producer
from onceflow.client.transactions import machine as txn_machine
from onceflow.client.transactions.states import ProducerState, WrongState
from onceflow.types import TopicPartition
from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.decided import until_decided
from tests.interop.harness import Names

SECONDS = 60.0
PARTITIONS = 3


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await main()

    asyncio.run(limited())


def read(names: Names, topic: str, isolation: str = "read_committed") -> list[tuple[int, Any]]:
    """Partition and value of every record that confluent-kafka sees, by partition and offset."""
    until_decided(names.bootstrap)
    reader = Consumer(
        {
            "bootstrap.servers": names.bootstrap,
            "group.id": names("reader"),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    reader.assign([Place(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
    found: list[tuple[int, int, Any]] = []
    at_end: set[Any] = set()
    while len(at_end) < PARTITIONS:
        message = reader.poll(SECONDS)
        assert message is not None
        error = message.error()
        if error is None:
            found.append((message.partition() or 0, message.offset() or 0, message.value()))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            at_end.add(message.partition())
    reader.close()
    return [(partition, value) for partition, _, value in sorted(found)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_where_their_receipts_say(names: Names, codec: str) -> None:
    topic = ready_topic(names, partitions=PARTITIONS)
    sent: dict[tuple[int, int], bytes] = {}

    async def main() -> None:
        async with Producer(names.bootstrap, compression_type=codec) as producer:
            values = [b"%d" % number for number in range(500)]
            receipts = [await producer.send(topic, value, key=value) for value in values]
            for value, receipt in zip(values, receipts, strict=True):
                delivery = await receipt
                sent[delivery.partition, delivery.offset] = value

    run(main)
    assert read(names, topic) == [(place[0], sent[place]) for place in sorted(sent)]


@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once", "idempotent"])
def test_every_promise_delivers_when_nothing_fails(names: Names, delivery: str) -> None:
    topic = ready_topic(names, partitions=PARTITIONS)

    async def main() -> None:
        async with Producer(names.bootstrap, delivery=delivery) as producer:
            for number in range(100):
                await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)

    run(main)
    values = sorted(int(value) for _, value in read(names, topic))
    assert values == list(range(100))


def test_a_table_goes_by_key_and_by_column(names: Names) -> None:
    topic = ready_topic(names, partitions=PARTITIONS)
    table = pa.table(
        {
            "value": [b"%d" % number for number in range(3000)],
            "partition": pa.array([number % PARTITIONS for number in range(3000)], pa.int32()),
        }
    )

    async def main() -> None:
        async with Producer(names.bootstrap) as producer:
            placed = await (await producer.send_table(topic, table))
            assert [each.rows for each in placed] == [1000] * PARTITIONS

    run(main)
    assert read(names, topic) == [
        (partition, b"%d" % number)
        for partition in range(PARTITIONS)
        for number in range(partition, 3000, PARTITIONS)
    ]


def test_transactions_are_seen_whole_or_not_at_all(names: Names) -> None:
    topic = ready_topic(names, partitions=PARTITIONS)

    async def main() -> None:
        async with Producer(names.bootstrap, transactional_id=names("id")) as producer:
            for number in range(6):
                try:
                    async with producer.transaction() as transaction:
                        for partition in range(PARTITIONS):
                            await transaction.send(topic, b"%d" % number, partition=partition)
                        if number % 2:
                            await producer.flush()
                            raise KeyError("the application changed its mind")
                except KeyError:
                    assert producer.state is ProducerState.READY

    run(main)
    assert read(names, topic) == [(each, b"%d" % n) for each in range(3) for n in (0, 2, 4)]
    assert len(read(names, topic, "read_uncommitted")) == 18


def test_offsets_hold_when_the_transaction_does(names: Names) -> None:
    topic, group = ready_topic(names, partitions=PARTITIONS), names("group")

    async def main() -> None:
        async with Producer(names.bootstrap, transactional_id=names("id")) as producer:
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"a")
                await transaction.send_offsets({TopicPartition(topic, 0): 7}, group)
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 9}, group)
            await producer.abort_transaction()

    run(main)
    reader = Consumer({"bootstrap.servers": names.bootstrap, "group.id": group, "log_level": 0})
    (found,) = reader.committed([Place(topic, 0)], SECONDS)
    reader.close()
    assert found.offset == 7


def test_the_older_producer_is_fenced(names: Names) -> None:
    topic = ready_topic(names, partitions=PARTITIONS)

    async def main() -> None:
        settings = {"transactional.id": names("id")}
        async with (
            Producer(names.bootstrap, settings) as old,
            Producer(names.bootstrap, settings) as new,
        ):
            await old.init_transactions()
            await old.begin_transaction()
            await (await old.send(topic, b"zombie"))
            async with new.transaction() as transaction:
                await transaction.send(topic, b"new")
            with pytest.raises((Fenced, AbortableError)):
                await old.commit_transaction()
            if old.state is ProducerState.ABORTABLE_ERROR:
                with pytest.raises(Fenced):
                    await old.abort_transaction()
            assert old.state is ProducerState.FATAL_ERROR

    run(main)
    assert [value for _, value in read(names, topic)] == [b"new"]


def test_a_producer_that_rested_leaves_its_successor_alone(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while that one has a transaction open, which Apache Kafka would abort for the asking."""
    topic = ready_topic(names, partitions=PARTITIONS)

    async def main() -> None:
        settings = {"transactional.id": names("id")}
        async with (
            Producer(names.bootstrap, settings) as old,
            Producer(names.bootstrap, settings) as new,
        ):
            for number in range(2):
                async with old.transaction() as transaction:
                    await transaction.send(topic, b"%d" % number, partition=0)
                monkeypatch.setattr(txn_machine, "RENEWED_AFTER_S", -1.0)
            await new.init_transactions()
            await new.begin_transaction()
            await (await new.send(topic, b"2", partition=0))
            with pytest.raises(Fenced, match="another producer"):
                await old.begin_transaction()
            assert old.state is ProducerState.FATAL_ERROR
            await new.commit_transaction()
            monkeypatch.undo()
            async with new.transaction() as transaction:
                await transaction.send(topic, b"3", partition=0)

    run(main)
    assert [value for _, value in read(names, topic)] == [b"0", b"1", b"2", b"3"]


def test_what_was_gathered_is_given_up_by_an_abort(names: Names) -> None:
    topic = ready_topic(names, partitions=PARTITIONS)

    async def main() -> None:
        settings = {"transactional.id": names("id"), "linger.ms": 60_000}
        async with Producer(names.bootstrap, settings) as producer:
            with pytest.raises(WrongState, match="has no epoch yet"):
                await producer.send(topic, b"too soon")
            await producer.init_transactions()
            await producer.begin_transaction()
            receipt = await producer.send(topic, b"never")
            await producer.abort_transaction()
            with pytest.raises(TransactionAborted):
                await receipt
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"after")

    run(main)
    assert [value for _, value in read(names, topic, "read_uncommitted")] == [b"after"]


PRODUCER_TESTS: Final[Mapping[str, Callable[..., None]]] = {
    name: each for name, each in globals().items() if name.startswith("test_")
}
"""By name, as a module has them."""
