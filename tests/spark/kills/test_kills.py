"""Exactly once by force, from topic to topic: whoever is killed, and whenever, a client of others
finds every row once, in order, batches whole, and offsets and ledger in agreement with them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from onceflow.spark.sink import job as sink_job
from tests.spark.kills.blows import Blow
from tests.spark.kills.brokers import Ours
from tests.spark.kills.fate import FateServer
from tests.spark.kills.faults import POINTS, Fault
from tests.spark.kills.judge import judge
from tests.spark.kills.query import BAD
from tests.spark.kills.round import Drivers, Here, Round, Stage, making_drivers, play_here
from tests.spark.kills.world import make_world
from tests.spark.session import MASTER
from tests.spark.sink.hooks import UNANSWERED
from tests.spark.sink.world import PATIENCE_S, committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

ROWS_IN_BATCH = 100


@pytest.fixture(scope="module")
def drivers(spark_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """The first one starts while tests that need none are run."""
    with making_drivers(tmp_path_factory.mktemp("drivers"), MASTER) as drivers:
        drivers.prepare()
        yield drivers


@pytest.fixture(scope="module")
def brokers() -> Iterator[Ours]:
    """Our broker, to be killed."""
    with Ours() as brokers:
        yield brokers


@pytest.fixture
def fate() -> Iterator[FateServer]:
    with FateServer() as fate:
        yield fate


IN_PLACE = [
    Blow(Fault.WORKER, "after write"),
    Blow(Fault.BROKER, "mid-write"),
    Blow(Fault.TASK, "mid-write"),
    Blow(Fault.STAGE, "after write"),
    Blow(Fault.BROKER, "before EndTxn"),
    Blow(Fault.BROKER, UNANSWERED),
]
MORE_IN_PLACE = [
    *(Blow(fault, point) for fault in (Fault.WORKER, Fault.TASK) for point in POINTS[fault]),
    *(Blow(Fault.BROKER, point) for point in POINTS[Fault.BROKER]),
]


@pytest.mark.parametrize(
    "blows",
    [
        pytest.param(IN_PLACE, id="one of each kind"),
        pytest.param(MORE_IN_PLACE, id="every point", marks=pytest.mark.long),
    ],
)
def test_a_fault_in_every_batch(
    blows: list[Blow],
    spark: SparkSession,
    brokers: Ours,
    drivers: Drivers,
    fate: FateServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The query goes on in its place, whatever happens to others than its driver."""
    # More tasks than cores: those that start late find that the rows between stages are gone.
    monkeypatch.setattr(sink_job, "_tasks", lambda frame, layout: 6)
    world = make_world(brokers.bootstrap, tmp_path, ROWS_IN_BATCH * (2 * len(blows) - 2))
    stage = Stage(world, brokers, fate, random.Random(1))
    plan = world.plan("rows", ROWS_IN_BATCH)
    outcome = play_here(spark, stage, plan, blows)
    assert outcome.errors == {}
    assert outcome.struck == blows
    assert outcome.verdict.problems == []


DRIVERS_END = [Blow(Fault.DRIVER, "mid-write"), Blow(Fault.ZOMBIE, "before EndTxn")]


@pytest.mark.parametrize(
    "blows",
    [
        pytest.param(DRIVERS_END, id="two"),
        pytest.param(
            [*DRIVERS_END, Blow(Fault.DRIVER, UNANSWERED)], id="three", marks=pytest.mark.long
        ),
    ],
)
def test_drivers_are_killed_and_come_back(
    blows: list[Blow],
    spark: SparkSession,
    brokers: Ours,
    drivers: Drivers,
    fate: FateServer,
    tmp_path: Path,
) -> None:
    """One stands still and wakes up beside its successor, others are killed, the last one is this
    process."""
    world = make_world(brokers.bootstrap, tmp_path, ROWS_IN_BATCH * (2 * len(blows) + 2))
    stage = Stage(world, brokers, fate, random.Random(1))
    plan = world.plan("rows", ROWS_IN_BATCH)
    outcome = Round(stage, plan, drivers, blows, last=Here(spark)).run()
    assert outcome.struck == blows
    assert outcome.verdict.problems == []
    assert outcome.prefixes >= 1
    assert outcome.zombies == Counter({"SinkFenced": 1}), outcome.last_words


@pytest.mark.long
def test_counts_of_a_killed_driver(
    spark: SparkSession, brokers: Ours, drivers: Drivers, fate: FateServer, tmp_path: Path
) -> None:
    """Its state and its output stay in step, though it dies between the two."""
    blows = [Blow(Fault.DRIVER, "after EndTxn")]
    world = make_world(brokers.bootstrap, tmp_path, ROWS_IN_BATCH * 5)
    stage = Stage(world, brokers, fate, random.Random(1))
    plan = world.plan("counts", ROWS_IN_BATCH)
    outcome = Round(stage, plan, drivers, blows, last=Here(spark)).run()
    assert outcome.struck == blows
    assert outcome.verdict.problems == []


def test_the_judge_sees_what_is_wrong(brokers: Ours, tmp_path: Path) -> None:
    """Rows that are missing; then one that is there twice, the second time behind later ones."""
    world = make_world(brokers.bootstrap, tmp_path, 400)
    problems = judge(world, "rows").problems
    assert any("rows missing: " in each for each in problems)
    assert any("the ledger has None" in each for each in problems)
    records = committed(brokers.bootstrap, world.input)
    good = [each for each in records if BAD not in each.value().decode()]
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "partitioner": "murmur2"})
    for each in (*good, good[0]):
        value = f"{each.value().decode()} {each.partition()} {each.offset()}"
        producer.produce(world.output, value, each.key())
    assert producer.flush(PATIENCE_S) == 0
    problems = judge(world, "rows").problems
    assert any("rows too many: 1" in each for each in problems)
    assert any("comes after" in each for each in problems)
    assert not any("rows missing: " in each for each in problems)
