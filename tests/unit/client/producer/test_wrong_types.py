"""What `send` does not take is refused with a sentence that says what to pass, whether the short
way or the long way of a record finds it; and the producer can be used on."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.client.codec.transactions import OffsetsInvalid
from onceflow.client.errors.requests import NoSuchPartition, TopicNameInvalid
from onceflow.client.producer.batch import RecordInvalid
from onceflow.testing.world import World
from onceflow.types import TopicPartition
from tests.unit.broker.broker_under_test import RawClient, Running
from tests.unit.client.producer.simulated_producers import play, producer, values

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"value": "text"}, r"the value of a record is a str, .*; pass value\.encode\(\)"),
    ({"value": 5}, "the value of a record is an int, .*; serialise it first"),
    ({"key": "text"}, r"the key of a record is a str, .*; pass key\.encode\(\)"),
    ({"key": "text", "partition": 0}, r"the key of a record is a str, .*; pass key\.encode\(\)"),
    ({"key": 5}, "the key of a record is an int"),
    ({"partition": "0"}, "the partition is a str; pass its number as an int"),
    ({"partition": 0.5}, "the partition is a float; pass its number as an int"),
    ({"timestamp_ms": 1.5}, "the timestamp of a record is a float; pass an int, milliseconds"),
    ({"timestamp_ms": "now"}, "the timestamp of a record is a str; pass an int"),
    ({"headers": {"a": b"b"}}, r"the headers are a mapping; .*: \[\*headers\.items\(\)\]"),
    ({"headers": "ab"}, "the headers are a str; pass a list of pairs"),
    ({"headers": 5}, "the headers are an int; pass a list of pairs"),
    ({"headers": iter([("a", b"b")])}, "pass a list of pairs"),
    ({"headers": [("a", "b")]}, r"a header is \('a', 'b'\); pass pairs of a str, and bytes"),
    ({"headers": [5]}, "a header is 5; pass pairs"),
    ({"topic": None}, "the topic is None; pass its name as a str"),
    ({"topic": b"t"}, "the topic is bytes; pass its name as a str"),
    ({"topic": ["t"]}, "the topic is a list; pass its name as a str"),
]


@pytest.mark.parametrize("is_known", [False, True])
def test_each_wrong_type_is_told(is_known: bool) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        async with producer(world, linger_ms=10_000) as ours:
            if is_known:  # the short way
                await ours.send("t", b"first", key=b"k")
                await ours.send("t", b"second")
            for given, told in WRONG:
                record: Any = {"topic": "t", "value": b"x", **given}
                with pytest.raises(RecordInvalid, match=told):
                    await ours.send(record.pop("topic"), record.pop("value"), **record)
            assert ("t" in running.server.node.topics.by_name) is is_known
            good: Any = bytearray(b"good")
            await ours.send("t", good, partition=0)
        sent = [b"first", b"second", b"good"] if is_known else [b"good"]
        assert await values(client, "t") == sent

    play(script)


def test_a_wrong_partition_does_not_end_the_producer() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        async with producer(world) as ours:
            cold: Any = 0.0
            with pytest.raises(RecordInvalid, match="the partition is a float"):
                await ours.send("t", b"x", partition=cold)
            for wrong in (-1, 1, True):
                with pytest.raises(NoSuchPartition):
                    await ours.send("t", b"x", partition=wrong)
            with pytest.raises(TopicNameInvalid):
                await ours.send("", b"x")
            not_a_table: Any = {"value": [b"a"]}
            with pytest.raises(RecordInvalid, match="is a dict; pass an Arrow table"):
                await ours.send_table("t", not_a_table)
            assert (await (await ours.send("t", b"x", partition=False))).offset == 0

    play(script)


@pytest.mark.parametrize(
    "offsets", [{"t": 1}, [1], {("t", 0): "1"}, {("t", 0): 1.5}, {("t", "0"): 1}, None]
)
def test_wrong_offsets_do_not_cost_the_transaction(offsets: Any) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("t", 1)
        no_group: Any = 5
        ours = producer(world, transactional_id="shop")
        async with ours, ours.transaction() as transaction:
            await transaction.send("t", b"x")
            with pytest.raises(OffsetsInvalid, match=r"pass a mapping such as \{TopicPart"):
                await transaction.send_offsets(offsets, "shop")
            with pytest.raises(OffsetsInvalid, match="the group is 5; pass its name"):
                await transaction.send_offsets({TopicPartition("t", 0): 1}, no_group)
            await transaction.send_offsets({TopicPartition("t", 0): 1}, "shop")
        assert (await values(client, "t"))[0] == b"x"

    play(script)
