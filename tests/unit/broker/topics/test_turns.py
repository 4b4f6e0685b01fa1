"""Topics of many partitions are made, grown and deleted in slices: others are served in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.requests.answers import AnswerPromise, OrderedPromise
from onceflow.broker.requests.client import Hangup
from onceflow.broker.requests.slices import Slices
from onceflow.broker.topics.turns import A_TURN, Steps, Turns
from onceflow.errors import DiskFull
from onceflow.testing.disk import Link, Op, SimDisk
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    ALL_TOPICS,
    RawClient,
    Running,
    batch,
    broker,
    play,
    produce_fields,
    produced,
    round_trip,
    run,
    simulated_broker,
    values_in,
)
from tests.unit.broker.txn.transactional_requests import committed_offset

MANY = 400


def creation(*names: str, partitions: int = MANY) -> dict[str, Any]:
    fields = {"num_partitions": partitions, "replication_factor": 1}
    rows = [{"name": name, **fields, "assignments": [], "configs": []} for name in names]
    return {"topics": rows, "timeout": 1000}


def deletion(*names: str) -> dict[str, Any]:
    return {"topics": [{"name": name, "topic_id": None} for name in names], "timeout": 1000}


def growth(name: str, count: int) -> dict[str, Any]:
    return {"topics": [{"name": name, "count": count, "assignments": None}], "timeout": 1000}


async def answered_meanwhile(
    running: Running, client: RawClient, key: ApiKey, version: int, fields: Any
) -> tuple[Any, int]:
    """The answer, and how many requests of another client were answered before it."""
    other = await running.client("other")
    answer = asyncio.ensure_future(client.ask(key, version, fields))
    count = 0
    while not answer.done():
        await round_trip(other)
        count += 1
    return await answer, count


def made_in_turns(world: World) -> Counter[int]:
    """Counts the files of logs that are made in each turn of the loop."""
    turns: Counter[int] = Counter()

    def note(op: Op) -> None:
        if isinstance(op, Link) and op.name.endswith(".log"):
            turns[world.loop._steps] += 1

    world.disk.watch = note
    return turns


def test_a_turn_of_the_loop_makes_some_logs_and_no_more() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        turns = made_in_turns(world)
        await client.create("large", MANY)
        answer = await client.ask(ApiKey.CREATE_PARTITIONS, 3, growth("large", 2 * MANY))
        assert answer["results"][0]["error_code"] == "NONE"
        names = [f"topic.{number}" for number in range(MANY)]
        await client.ask(ApiKey.CREATE_TOPICS, 7, creation(*names, partitions=1))
        await client.ask(ApiKey.METADATA, 9, asked_for())
        assert len(running.server.node.topics.by_name) == 1 + 2 * MANY
        assert turns.total() == 4 * MANY
        assert max(turns.values()) <= A_TURN

    play(script)


async def filled(client: RawClient, partitions: int, **configs: Any) -> None:
    await client.create("orders", partitions, **configs)
    for index in range(partitions):
        answer = await client.produce("orders", batch(b"a"), partition=index)
        assert answer["error_code"] == "NONE"


def test_records_of_many_partitions_are_deleted_in_turns() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await filled(client, 60)
            turns = made_in_turns(world)
            rows = [{"partition_index": index, "offset": -1} for index in range(60)]
            fields = {"topics": [{"name": "orders", "partitions": rows}], "timeout": 1000}
            (topic,) = (await client.ask(ApiKey.DELETE_RECORDS, 2, fields))["topics"]
            assert [each["partition_index"] for each in topic["partitions"]] == list(range(60))
            assert {each["low_watermark"] for each in topic["partitions"]} == {1}
            assert turns.total() == 60, "each begins a new file"
            assert max(turns.values()) <= A_TURN

    simulate(7, main)


def test_many_partitions_expire_in_turns() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, log_retention_check_interval_ms=60_000) as running:
            client = await running.client()
            await filled(client, 100, retention_ms="1000")
            turns = made_in_turns(world)
            await asyncio.sleep(120)
            topic = running.server.node.topics.by_name["orders"]
            assert {each.log.start_offset for each in topic.partitions} == {1}
            assert turns.total() == 100
            assert max(turns.values()) <= 32

    simulate(7, main)


def asked_for() -> dict[str, Any]:
    names = [f"auto-{number}" for number in range(MANY)]
    return {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": True}


def on_a_real_loop(tmp_path: Path, script: Callable[[Running, RawClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with broker(tmp_path) as running:
            await script(running, await running.client())

    run(main)


def test_others_are_served_while_a_large_topic_is_made_grown_and_deleted(tmp_path: Path) -> None:
    async def script(running: Running, client: RawClient) -> None:
        answer, meanwhile = await answered_meanwhile(
            running, client, ApiKey.CREATE_TOPICS, 7, creation("large")
        )
        assert answer["topics"][0]["error_code"] == "NONE"
        assert meanwhile > 3
        answer, meanwhile = await answered_meanwhile(
            running, client, ApiKey.CREATE_PARTITIONS, 3, growth("large", 2 * MANY)
        )
        assert answer["results"][0]["error_code"] == "NONE"
        assert meanwhile > 3
        assert len(running.server.node.topics.by_name["large"].partitions) == 2 * MANY
        last = 2 * MANY - 1
        assert (await client.produce("large", batch(b"x"), partition=last))["base_offset"] == 0
        answer = await client.ask(ApiKey.DELETE_TOPICS, 6, deletion("large"))
        assert answer["responses"][0]["error_code"] == "NONE"
        assert not [log for log in running.server.node.store.logs.values() if log.topic == "large"]

    on_a_real_loop(tmp_path, script)


def test_others_are_served_while_many_topics_are_made(tmp_path: Path) -> None:
    names = [f"topic.{number}" for number in range(MANY)]

    async def script(running: Running, client: RawClient) -> None:
        answer, meanwhile = await answered_meanwhile(
            running, client, ApiKey.CREATE_TOPICS, 7, creation(*names, partitions=1)
        )
        assert {topic["error_code"] for topic in answer["topics"]} == {"NONE"}
        assert meanwhile > 3
        answer, meanwhile = await answered_meanwhile(
            running, client, ApiKey.METADATA, 9, asked_for()
        )
        codes = {topic["error_code"] for topic in answer["topics"]}
        assert codes == {"UNKNOWN_TOPIC_OR_PARTITION"}, "clients ask again at once"
        assert meanwhile > 3
        answer = await client.ask(ApiKey.METADATA, 9, asked_for())
        assert {topic["error_code"] for topic in answer["topics"]} == {"NONE"}

    on_a_real_loop(tmp_path, script)


def test_a_name_is_taken_but_nobody_finds_the_topic_before_it_is_whole(tmp_path: Path) -> None:
    async def script(running: Running, client: RawClient) -> None:
        other = await running.client("other")
        topics = running.server.node.topics
        client.send(ApiKey.CREATE_TOPICS, 7, creation("a.b"))
        while not topics.names_like("a.b"):
            await round_trip(other)
        assert "a.b" not in topics.by_name
        seen = await other.ask(ApiKey.METADATA, 9, {**ALL_TOPICS, "topics": [{"name": "a.b"}]})
        assert seen["topics"][0]["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        refused = await other.produce("a.b", batch(b"x"))
        assert refused["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        answer = await other.ask(ApiKey.CREATE_TOPICS, 7, creation("a.b", "a_b"))
        codes = [topic["error_code"] for topic in answer["topics"]]
        assert codes == ["TOPIC_ALREADY_EXISTS", "INVALID_TOPIC_EXCEPTION"]
        assert (await client.receive(ApiKey.CREATE_TOPICS, 7))["topics"][0]["error_code"] == "NONE"
        assert len(topics.by_name["a.b"].partitions) == MANY

    on_a_real_loop(tmp_path, script)


def test_changes_of_topics_are_made_in_the_order_in_which_they_came() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        client.send(ApiKey.CREATE_TOPICS, 7, creation("orders"))
        client.send(ApiKey.CREATE_PARTITIONS, 3, growth("orders", MANY + 20))
        client.send(ApiKey.DELETE_TOPICS, 6, deletion("orders"))
        client.send(ApiKey.CREATE_TOPICS, 7, creation("orders", partitions=2))
        made = await client.receive(ApiKey.CREATE_TOPICS, 7)
        grown = await client.receive(ApiKey.CREATE_PARTITIONS, 3)
        gone = await client.receive(ApiKey.DELETE_TOPICS, 6)
        again = await client.receive(ApiKey.CREATE_TOPICS, 7)
        rows = [made["topics"][0], grown["results"][0], gone["responses"][0], again["topics"][0]]
        assert [row["error_code"] for row in rows] == ["NONE"] * 4
        assert made["topics"][0]["topic_id"] != again["topics"][0]["topic_id"]
        assert len(running.server.node.topics.by_name["orders"].partitions) == 2

    play(script)


def test_a_topic_whose_logs_find_no_room_midway_leaves_nothing_and_its_name_is_free() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        made: list[Op] = []

        def full_after_some(op: Op) -> bool:
            if isinstance(op, Link) and op.name.endswith(".log"):
                made.append(op)
                if len(made) == MANY // 2:
                    raise DiskFull("simulated")
            return False

        world.disk.fail = full_after_some
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, creation("large"))
        assert answer["topics"][0]["error_code"] == "KAFKA_STORAGE_ERROR"
        node = running.server.node
        assert not node.topics.by_name
        assert not node.topics.names_like("large")
        assert not [log for log in node.store.logs.values() if log.topic == "large"]
        world.disk.fail = lambda _: False
        await client.create("large", 3)
        await asyncio.sleep(5)
        names = [each.name for each in world.disk.entries(".") if each.name.startswith("large")]
        assert len(names) == 3
        assert not running.server.failed.done()

    play(script)


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("after", [1, MANY // 2, MANY - 1])
def test_what_a_crash_leaves_of_a_topic_in_the_making_is_removed(
    durability: str, after: int
) -> None:
    images: list[SimDisk] = []

    async def main(world: World) -> None:
        async with simulated_broker(world, durability=durability) as running:
            client = await running.client()
            await client.create("orders")
            await client.produce("orders", batch(b"kept"))
            made: list[Op] = []

            def note(op: Op) -> None:
                if isinstance(op, Link) and op.name.endswith(".log"):
                    made.append(op)
                    if len(made) == after:
                        images.append(SimDisk(world.disk.tree))

            world.disk.watch = note
            await client.ask(ApiKey.CREATE_TOPICS, 7, creation("large"))

    async def again(world: World) -> None:
        (image,) = images
        async with simulated_broker(world, disk=image, durability=durability) as running:
            client = await running.client()
            assert list(running.server.node.topics.by_name) == ["orders"]
            fetched = await client.fetch("orders", 0)
            assert values_in(fetched["records"]) == [(0, b"kept")]
            await client.create("large", 2)

    simulate(3, main)
    simulate(4, again)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_what_a_crash_leaves_of_a_topic_that_is_being_deleted_is_removed(durability: str) -> None:
    images: list[SimDisk] = []

    async def main(world: World) -> None:
        async with simulated_broker(world, durability=durability) as running:
            client = await running.client()
            await client.create("large", 600)
            for partition in (0, 300, 599):
                await client.produce("large", batch(b"x"), partition=partition)
            node = running.server.node
            steps = node.topics.delete(node.topics.by_name["large"])
            next(steps)  # of some partitions
            await asyncio.sleep(3)
            images.append(SimDisk(world.disk.tree))
            list(steps)

    async def again(world: World) -> None:
        async with simulated_broker(world, disk=images[0], durability=durability) as running:
            assert not running.server.node.topics.by_name
            assert len(running.server.node.store.logs) == 1

    simulate(3, main)
    simulate(4, again)


# --- turns by themselves -----------------------------------------------------------------------


class Loop:
    """Turns of a loop, one at a time; time does not pass by itself."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Callable[[], None]] = []
        slices = Slices(self.call_later, lambda *_: None)
        self.turns = Turns(self, slices)  # type: ignore[arg-type]

    def monotonic(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        assert delay == 0
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


def test_offsets_in_a_topic_go_in_the_same_step_as_the_topic() -> None:
    """A crash after the answer must not leave them to the next topic of that name."""

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders", 3)
        await client.produce("orders", batch(b"a"))
        place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        fields = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "orders", "partitions": [place]}],
        }
        await client.ask(ApiKey.OFFSET_COMMIT, 8, fields)
        assert await committed_offset(client, "g", "orders") == ("NONE", 1)
        node = running.server.node
        next(node.topics.delete(node.topics.by_name["orders"]))
        await client.create("orders", 3)
        assert await committed_offset(client, "g", "orders") == ("NONE", -1)

    play(script)


def test_what_a_client_asks_behind_a_change_of_topics_finds_it_made() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        client.send(ApiKey.CREATE_TOPICS, 7, creation("large"))
        client.send(ApiKey.PRODUCE, 9, produce_fields("large", batch(b"a"), partition=MANY - 1))
        await client.receive(ApiKey.CREATE_TOPICS, 7)
        assert produced(await client.receive(ApiKey.PRODUCE, 9))["error_code"] == "NONE"

    play(script)


def steps(done: list[str], name: str, *sizes: int) -> Steps[None]:
    for size in sizes:
        done.append(name)
        yield size


def test_what_fits_into_one_turn_is_done_at_once() -> None:
    loop, done = Loop(), list[str]()
    assert loop.turns.do(steps(done, "a", 1, 2), lambda: "answer") == "answer"
    assert done == ["a", "a"]
    assert not loop.due


def test_work_waits_for_what_came_before_it() -> None:
    loop, done, answers = Loop(), list[str](), list[str]()
    long = loop.turns.do(steps(done, "a", A_TURN, A_TURN, 1), lambda: "a")
    short = loop.turns.do(steps(done, "b", 1), lambda: "b")
    assert isinstance(long, AnswerPromise)
    assert isinstance(short, AnswerPromise)
    long.then(answers.append)
    short.then(answers.append)
    assert done == ["a"]
    loop.turn()
    assert (done, answers) == (["a", "a"], [])
    loop.turn()
    assert (done, answers) == (["a", "a", "a"], ["a"])
    loop.turn()
    assert (done, answers) == (["a", "a", "a", "b"], ["a", "b"])
    loop.turn()
    assert not loop.due


def test_a_slow_disk_makes_slices_smaller() -> None:
    loop = Loop()
    done = 0

    def slow() -> Steps[None]:
        nonlocal done
        for _ in range(3):
            loop.now += 1
            done += 1
            yield 1

    loop.turns.do(slow(), lambda: None)
    assert done == 1
    loop.turn()
    assert done == 2


def test_a_defect_in_one_piece_of_work_does_not_keep_others_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, done = Loop(), list[str]()

    def broken() -> Steps[None]:
        yield A_TURN
        raise ZeroDivisionError

    hung_up = loop.turns.do(broken(), lambda: None)
    answer = loop.turns.do(steps(done, "b", 1), lambda: "b")
    loop.turn()
    loop.turn()
    assert isinstance(hung_up, OrderedPromise)
    found: list[object] = []
    hung_up.then(found.append)
    assert isinstance(found[0], Hangup)
    assert isinstance(answer, AnswerPromise)
    assert answer.is_resolved
    assert "internal error in a change of topics" in caplog.text
