"""Clients of a whole broker in a simulated world, and what they were promised.

`main` runs a broker and scripted clients that make topics, produce, fetch and commit offsets over
a network that loses and resets. Each notes what was acknowledged, with the number of the disk's op
at that moment. `check_image` starts a second broker on what a power cut left and raises
`PromiseBroken` when something acknowledged before is not there.

Run as a program it prints the trace hash of each seed, so that processes can be compared.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onceflow.testing.crash import Image, crash_images
from onceflow.testing.disk import SimDisk, Sync, SyncDir, SyncWrite, Write
from onceflow.testing.faults import NetFaults
from onceflow.testing.rand import SimRand
from onceflow.testing.world import World, run
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import (
    RawClient,
    Running,
    batch,
    simulated_broker,
    values_in,
)

CLIENTS = 3
STEPS = 24
PARTITIONS = 2
FAULTS = NetFaults(
    delay_s=(0.0005, 0.02),
    split_chance=0.2,
    dribble_chance=0.1,
    refuse_chance=0.05,
    reset_chance=0.02,
    half_close_chance=0.005,
    lose_response_chance=0.02,
)
SMALL: dict[str, Any] = {
    "journal_first_file_bytes": 16 << 10,
    "journal_largest_file_bytes": 32 << 10,
    "journal_files": 2,
}


class PromiseBroken(AssertionError):
    """Something that was acknowledged is not there."""


class Acked(NamedTuple):
    """A batch that a client was told is safe, and when."""

    at: int
    topic: str
    partition: int
    offset: int
    values: tuple[bytes, ...]


@dataclass(slots=True)
class Committed:
    """An offset of a group: what was asked for, and what was acknowledged when."""

    asked: list[tuple[int, int]] = field(default_factory=list)
    acked: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """What the clients saw."""

    disk: SimDisk
    topics: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """When the deletion of a topic was asked for, and when it was acknowledged."""
    acked: list[Acked] = field(default_factory=list)
    commits: dict[str, Committed] = field(default_factory=dict)
    fetched: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def now(self) -> int:
        return len(self.disk.ops)

    def told(self) -> tuple[object, ...]:
        """All of it in a form that can be compared."""
        commits = {group: (each.asked, each.acked) for group, each in self.commits.items()}
        return self.topics, self.deleted, self.acked, commits, self.fetched, self.failures


class Scripted:
    """One client, which tries again until it is answered."""

    def __init__(self, world: World, running: Running, number: int, history: History) -> None:
        self._running = running
        self._history = history
        self._rand = world.rand.fork(f"client {number}")
        self._client: RawClient | None = None
        self._number = number
        self.topic = f"topic-{number}"
        self.group = f"group-{number}"
        self._sent = 0
        self._positions = [0] * PARTITIONS

    async def run(self) -> None:
        await self._create(self.topic, PARTITIONS)
        for _ in range(STEPS):
            step = (self._produce, self._produce, self._fetch, self._commit)[
                self._rand.randrange(4)
            ]
            await step()
            await asyncio.sleep(self._rand.uniform(0, 0.05))
        await self._create_and_delete()

    async def _ask(self, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        """The answer; asked again, on a new connection, until there is one."""
        while True:
            try:
                if self._client is None or self._client.is_lost:
                    self._client = await self._running.client(f"client-{self._number}")
                    self._client.patience = 5.0
                return await self._client.ask(key, version, fields)
            except (OSError, TimeoutError) as error:
                self._history.failures.append(type(error).__name__)
                if self._client is not None:
                    self._client.close()
                self._client = None
                await asyncio.sleep(self._rand.uniform(0.01, 0.3))

    async def _create(self, name: str, partitions: int) -> None:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        fields = {"topics": [{**topic, "assignments": [], "configs": []}], "timeout": 1000}
        answer = await self._ask(ApiKey.CREATE_TOPICS, 7, fields)
        # Asked again after a lost answer, it is there already: then it may not be durable yet,
        # and whatever is asked of it next is.
        if answer["topics"][0]["error_code"] == "NONE":
            self._history.topics[name] = self._history.now

    async def _create_and_delete(self) -> None:
        name = f"brief-{self._number}"
        await self._create(name, 1)
        asked = self._history.now
        fields = {"topics": [{"name": name, "topic_id": None}], "timeout": 1000}
        answer = await self._ask(ApiKey.DELETE_TOPICS, 6, fields)
        if answer["responses"][0]["error_code"] == "NONE":
            self._history.deleted[name] = asked, self._history.now
        else:
            self._history.topics.pop(name, None)  # gone before this answer, nobody knows when

    async def _produce(self) -> None:
        partition = self._rand.randrange(PARTITIONS)
        values = []
        for _ in range(1 + self._rand.randrange(3)):
            self._sent += 1
            filling = b"." * self._rand.randrange(1500)
            values.append(b"%d/%d/%s" % (self._number, self._sent, filling))
        part = {"index": partition, "records": batch(*values)}
        acks = (-1, 1)[self._rand.randrange(2)]
        topics = [{"name": self.topic, "partition_data": [part]}]
        fields = {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": topics}
        answer = await self._ask(ApiKey.PRODUCE, 9, fields)
        result = answer["responses"][0]["partition_responses"][0]
        if result["error_code"] != "NONE":
            raise PromiseBroken(f"a good batch was refused: {result}")
        offset = result["base_offset"]
        self._history.acked.append(
            Acked(self._history.now, self.topic, partition, offset, tuple(values))
        )

    async def _fetch(self) -> None:
        partition = self._rand.randrange(PARTITIONS)
        position = self._positions[partition]
        part = {"partition": partition, "fetch_offset": position, "partition_max_bytes": 4096}
        topics = [{"topic": self.topic, "partitions": [part]}]
        fields = {"replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 1 << 20}
        answer = await self._ask(ApiKey.FETCH, 12, {**fields, "topics": topics})
        records = answer["responses"][0]["partitions"][0]["records"]
        found = [offset for offset, _ in values_in(records) if offset >= position]
        if found != list(range(position, position + len(found))):
            raise PromiseBroken(f"a fetch from {position} brought {found}")
        self._positions[partition] += len(found)
        self._history.fetched += len(found)

    async def _commit(self) -> None:
        commits = self._history.commits.setdefault(self.group, Committed())
        offset = len(commits.asked) + 1
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        fields = {
            "group_id": self.group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": self.topic, "partitions": [part]}],
        }
        commits.asked.append((self._history.now, offset))
        answer = await self._ask(ApiKey.OFFSET_COMMIT, 8, fields)
        code = answer["topics"][0]["partitions"][0]["error_code"]
        if code == "NONE":
            commits.acked.append((self._history.now, offset))
        elif code not in ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"):
            raise PromiseBroken(f"a commit was refused: {code}")


async def main(world: World) -> History:
    """A broker, its clients, and a broker that is not stopped but cut off."""
    history = History(world.disk)
    async with simulated_broker(world, **SMALL) as running:
        clients = [Scripted(world, running, number, history) for number in range(CLIENTS)]
        await asyncio.gather(*(each.run() for each in clients))
        world.net.heal()
    return history


# --- after the power cut -------------------------------------------------------------------------


def sampled_images(history: History, *, seed: int, boundaries: int) -> Iterator[Image]:
    """Images of a seeded sample of boundaries, each of another kind."""
    rand = SimRand(seed, ("images",))
    for number in range(boundaries):
        at = rand.randrange(history.now + 1)
        images = list(crash_images(history.disk, seed=seed, subsets=2, first=at, last=at))
        yield images[number % min(len(images), 2)]
        yield images[rand.randrange(len(images))]


def check_image(image: Image, history: History) -> None:
    """Starts a broker on the image and looks for all that was acknowledged before the cut."""

    async def look(world: World) -> None:
        async with simulated_broker(world, disk=image.disk, **SMALL) as running:
            client = await running.client()
            await _check_topics(client, image, history)
            await _check_records(client, image, history)
            await _check_commits(client, image, history)

    run(image.boundary, look)


async def _check_topics(client: RawClient, image: Image, history: History) -> None:
    answer = await client.ask(ApiKey.METADATA, 12, {"topics": None})
    found = {topic["name"]: len(topic["partitions"]) for topic in answer["topics"]}
    for name, acked_at in history.topics.items():
        asked, deleted_at = history.deleted.get(name, (1 << 62, 1 << 62))
        if acked_at <= image.boundary < asked and name not in found:
            raise PromiseBroken(f"{image[:2]}: {name}, made at {acked_at}, is gone")
        if deleted_at <= image.boundary and name in found:
            raise PromiseBroken(f"{image[:2]}: {name}, deleted at {deleted_at}, is back")


async def _check_records(client: RawClient, image: Image, history: History) -> None:
    promised = [each for each in history.acked if each.at <= image.boundary]
    for topic, partition in sorted({(each.topic, each.partition) for each in promised}):
        found = await _all_records(client, topic, partition)
        for each in promised:
            if (each.topic, each.partition) != (topic, partition):
                continue
            there = tuple(found.get(each.offset + at) for at in range(len(each.values)))
            if there != each.values:
                raise PromiseBroken(f"{image[:2]}: {each[:4]} was acknowledged and is {there}")


async def _all_records(client: RawClient, topic: str, partition: int) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    while True:
        part = {"partition": partition, "fetch_offset": len(found), "partition_max_bytes": 1 << 20}
        topics = [{"topic": topic, "partitions": [part]}]
        fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
        answer = await client.ask(ApiKey.FETCH, 12, {**fields, "topics": topics})
        records = answer["responses"][0]["partitions"][0]["records"]
        if not records:
            return found
        found.update(values_in(records))


async def _check_commits(client: RawClient, image: Image, history: History) -> None:
    for group, commits in history.commits.items():
        acked = max((offset for at, offset in commits.acked if at <= image.boundary), default=-1)
        asked = max((offset for at, offset in commits.asked if at <= image.boundary), default=-1)
        topics = [{"name": group.replace("group", "topic"), "partition_indexes": [0]}]
        fields = {"group_id": group, "topics": topics, "require_stable": True}
        answer = await client.ask(ApiKey.OFFSET_FETCH, 7, fields)
        offset = answer["topics"][0]["partitions"][0]["committed_offset"]
        if not acked <= offset <= asked:
            raise PromiseBroken(f"{image[:2]}: {group} has {offset}, not {acked} to {asked}")


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        print(run(number, main, faults=FAULTS)[1])


def without_syncs(disk: SimDisk) -> SimDisk:
    """The same ops in the same places, but that no sync does anything."""
    lying = SimDisk(disk.base)
    lying.tree = disk.tree
    nothing = Write(-1, 0, b"")
    lying.ops = [nothing if isinstance(op, Sync | SyncDir | SyncWrite) else op for op in disk.ops]
    return lying
