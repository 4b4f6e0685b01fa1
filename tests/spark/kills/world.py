"""The topics of a query that is killed, and its input: numbered records, some of them bad, whose
keys keep the order of their numbers, at times that make windows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.spark.kills.query import BAD, Plan
from tests.spark.sink.world import PATIENCE_S, fresh

INPUT_PARTITIONS: Final = 4
OUTPUT_PARTITIONS: Final = 5
KEYS: Final = 37
BEGAN_MS: Final = 1_700_000_000_000
STEP_MS: Final = 90


class World(NamedTuple):
    """The topics, and where the query's checkpoint is."""

    bootstrap: str
    name: str
    directory: Path

    @property
    def input(self) -> str:
        return f"{self.name}-in"

    @property
    def output(self) -> str:
        return f"{self.name}-out"

    @property
    def dead(self) -> str:
        return f"{self.name}-dead"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def plan(self, kind: str, rows_in_batch: int, **more: Any) -> Plan:
        return Plan(
            kind=kind,
            bootstrap=self.bootstrap,
            name=self.name,
            input=self.input,
            output=self.output,
            dead=self.dead,
            checkpoint=str(self.checkpoint),
            rows_in_batch=rows_in_batch,
            **more,
        )


def make_world(
    bootstrap: str, directory: Path, rows: int, *, seed: int = 1, replicas: int = 1
) -> World:
    """A world with so many records to read."""
    world = World(bootstrap, fresh("killed"), directory)
    wanted = {
        world.input: INPUT_PARTITIONS,
        world.output: OUTPUT_PARTITIONS,
        world.dead: 1,
        # The ledger's: made here, for its replicas.
        "onceflow-ledger": 1,
    }
    admin = AdminClient({"bootstrap.servers": bootstrap})
    known = admin.list_topics(timeout=PATIENCE_S).topics
    made = admin.create_topics(
        [
            # Records are dated as it suits the windows, and must not be taken for old ones.
            NewTopic(name, count, replicas, config={"retention.ms": "-1"})
            for name, count in wanted.items()
            if name not in known
        ]
    )
    for each in made.values():
        each.result(PATIENCE_S)
    _fill(world, rows, random.Random(seed))
    return world


def _fill(world: World, rows: int, rand: random.Random) -> None:
    # The judge goes by numbers: the input has to be in their order, whatever is sent again.
    producer = Producer(
        {
            "bootstrap.servers": world.bootstrap,
            "partitioner": "murmur2",
            "enable.idempotence": True,
        }
    )
    failed: list[Any] = []

    def told(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    for number in range(rows):
        mark = BAD if rand.random() < 0.02 else ""
        value = f"{number} {rand.getrandbits(64):016x}{mark}"
        key = f"key-{rand.randrange(KEYS)}"
        when = BEGAN_MS + number * STEP_MS
        producer.produce(world.input, value, key, timestamp=when, on_delivery=told)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed, failed[0]
