"""Exactly once by force: whatever dies, at every point, each row is there once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import onceflow
from onceflow.client.admin.admin import Admin
from onceflow.spark.sink import job as sink_job
from onceflow.spark.sink.api import write_stream
from tests.interop.harness import eventually
from tests.spark.sink import driver as sink_driver
from tests.spark.sink.hooks import (
    DRIVER_POINTS,
    TASK_POINTS,
    UNANSWERED,
    Attempts,
    Both,
    DriverOnly,
    DropShuffle,
    Once,
    Signal,
    at_points,
    die,
)
from tests.spark.sink.world import committed, doubled, fresh, make_topic, put, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

FILES = 3
ROWS = 200


@pytest.fixture
def plan(tmp_path: Path) -> dict[str, Any]:
    """A query over three files."""
    for number in range(FILES):
        put(tmp_path / "in", number, range(number * ROWS, (number + 1) * ROWS))
    return {
        "name": fresh("query"),
        "input": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "scratch": str(tmp_path / "scratch"),
    }


def always_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the rows of one file, which one task reads."""
    monkeypatch.setattr(sink_job, "in_one_task", lambda frame: False)


def everything() -> list[str]:
    return sorted(map(str, range(FILES * ROWS)))


def rarely(*given: Any) -> Any:
    """A case that differs from others in its broker only: for `make long`."""
    return pytest.param(*given, marks=pytest.mark.long)


BEFORE_CLAIM, MID_WRITE, AFTER_WRITE = TASK_POINTS
BEFORE_OFFSETS, BEFORE_END, AFTER_END = DRIVER_POINTS


@pytest.mark.parametrize(
    ("point", "bootstrap"),
    [
        (BEFORE_OFFSETS, "kafka"),
        (BEFORE_END, "broker"),
        (UNANSWERED, "broker"),
        (UNANSWERED, "kafka"),
        (AFTER_END, "kafka"),
        rarely(BEFORE_OFFSETS, "broker"),
        rarely(BEFORE_END, "kafka"),
        rarely(AFTER_END, "broker"),
    ],
    indirect=["bootstrap"],
)
def test_a_driver_ends_there(
    point: str, spark: SparkSession, bootstrap: str, plan: dict[str, Any], tmp_path: Path
) -> None:
    plan |= {"bootstrap": bootstrap, "topic": make_topic(bootstrap, "out", 2)}
    hook = Once(point, tmp_path / "mark", die)
    with at_points(hook):
        with pytest.raises(Exception, match="Died: for a test"):
            sink_driver.files_query(spark, plan).start().awaitTermination()
        assert hook.has_happened
        sink_driver.files_query(spark, plan).start().awaitTermination()
    assert values(bootstrap, plan["topic"]) == everything()


async def _delete_group(bootstrap: str, plan: dict[str, Any]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.delete_group(f"{plan['name']}.ledger")


async def _delete_topic(bootstrap: str, plan: dict[str, Any]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.delete_topic(plan["more"]["ledger_topic"])


@pytest.mark.parametrize(
    ("delete", "first", "bootstrap"),
    [
        (_delete_topic, True, "kafka"),
        (_delete_topic, False, "broker"),
        (_delete_group, True, "broker"),
        (_delete_group, False, "kafka"),
        rarely(_delete_topic, True, "broker"),
        rarely(_delete_topic, False, "kafka"),
        rarely(_delete_group, True, "kafka"),
        rarely(_delete_group, False, "broker"),
    ],
    indirect=["bootstrap"],
)
def test_the_ledger_is_deleted_behind_a_commit(
    delete: Any,
    first: bool,
    spark: SparkSession,
    bootstrap: str,
    plan: dict[str, Any],
    tmp_path: Path,
) -> None:
    """The driver ended before Spark knew of the commit: the batch would be written again."""
    plan |= {"bootstrap": bootstrap, "topic": make_topic(bootstrap, "out", 2)}
    plan["more"] = {"ledger_topic": fresh("ledger")}
    if not first:
        sink_driver.files_query(spark, plan).start().awaitTermination()
        put(tmp_path / "in", FILES, range(FILES * ROWS, (FILES + 1) * ROWS))
    with (
        at_points(Once("after EndTxn", tmp_path / "mark", die)),
        pytest.raises(Exception, match="Died: for a test"),
    ):
        sink_driver.files_query(spark, plan).start().awaitTermination()
    before = values(bootstrap, plan["topic"])
    asyncio.run(delete(bootstrap, plan))
    with pytest.raises(Exception, match=r"LedgerConflict.*had an entry.*onceflow-ledger\*\.json"):
        sink_driver.files_query(spark, plan).start().awaitTermination()
    assert values(bootstrap, plan["topic"]) == before
    assert not doubled(before)


@pytest.mark.parametrize("bootstrap", ["kafka", rarely("broker")], indirect=True)
def test_a_ledger_that_was_deleted_before_a_commit(
    spark: SparkSession, bootstrap: str, plan: dict[str, Any], tmp_path: Path
) -> None:
    """Somebody looks, as the error advises, and finds that the batch is not in the output."""
    plan |= {"bootstrap": bootstrap, "topic": make_topic(bootstrap, "out", 2)}
    plan["more"] = {"ledger_topic": fresh("ledger")}
    with (
        at_points(Once("before EndTxn", tmp_path / "mark", die)),
        pytest.raises(Exception, match="Died: for a test"),
    ):
        sink_driver.files_query(spark, plan).start().awaitTermination()
    asyncio.run(_delete_topic(bootstrap, plan))
    with pytest.raises(Exception, match="LedgerConflict"):
        sink_driver.files_query(spark, plan).start().awaitTermination()
    assert values(bootstrap, plan["topic"]) == []
    (note,) = Path(plan["checkpoint"]).glob("onceflow-ledger*.json")
    note.unlink()
    sink_driver.files_query(spark, plan).start().awaitTermination()
    assert values(bootstrap, plan["topic"]) == everything()


@pytest.mark.parametrize(
    ("point", "bootstrap", "is_shuffled"),
    [
        (BEFORE_CLAIM, "kafka", True),
        (MID_WRITE, "broker", False),
        (AFTER_WRITE, "kafka", True),
        rarely(BEFORE_CLAIM, "kafka", False),
        rarely(MID_WRITE, "broker", True),
        rarely(AFTER_WRITE, "kafka", False),
    ],
    indirect=["bootstrap"],
)
def test_a_worker_is_killed_there(
    point: str,
    is_shuffled: bool,
    spark: SparkSession,
    bootstrap: str,
    plan: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_shuffled:
        always_shuffle(monkeypatch)
    plan |= {"bootstrap": bootstrap, "topic": make_topic(bootstrap, "out", 2)}
    hook = Once(point, tmp_path / "mark", Signal())
    with at_points(hook):
        sink_driver.files_query(spark, plan).start().awaitTermination()
    assert hook.has_happened
    assert values(bootstrap, plan["topic"]) == everything()


def test_a_stateful_query(
    spark: SparkSession, broker: onceflow.Broker, plan: dict[str, Any], tmp_path: Path
) -> None:
    """A worker is killed, then the driver ends behind a commit: aggregates are as computed."""
    topic = make_topic(broker.bootstrap, "out", 2)
    frame = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(plan["input"])
        .selectExpr("cast(value as int) % 7 as key", "cast(value as int) as number")
        .groupBy("key")
        .sum("number")
        .selectExpr("cast(key as string) as key", "cast(`sum(number)` as string) as value")
    )

    def run() -> None:
        writer = write_stream(
            frame, topic=topic, bootstrap=broker.bootstrap, name=plan["name"]
        ).option("checkpointLocation", plan["checkpoint"])
        writer.outputMode("update").trigger(availableNow=True).start().awaitTermination()

    killed = Once("after write", tmp_path / "killed", Signal())
    died = Once("after EndTxn", tmp_path / "died", die)
    with at_points(Both(killed, died)):
        with pytest.raises(Exception, match="Died: for a test"):
            run()
        run()
    assert killed.has_happened
    found = committed(broker.bootstrap, topic)
    assert len(found) == FILES * 7
    last = {int(each.key()): int(each.value()) for each in found}
    assert last == {key: sum(range(key, FILES * ROWS, 7)) for key in range(7)}


def test_a_stage_runs_again(
    spark: SparkSession,
    broker: onceflow.Broker,
    plan: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are lost between two stages: Spark runs both again, and counts attempts from 0. Now and
    then the sink is quicker, and begins a new epoch before Spark has; then once more."""
    always_shuffle(monkeypatch)
    # More tasks than cores: those that start late find their rows gone.
    monkeypatch.setattr(sink_job, "_tasks", lambda frame, layout: 6)
    plan |= {"bootstrap": broker.bootstrap}
    for number in range(3):
        directory = tmp_path / f"try-{number}"
        (directory / "notes").mkdir(parents=True)
        tried = plan | {
            "name": fresh("query"),
            "checkpoint": str(directory / "checkpoint"),
            "topic": make_topic(broker.bootstrap, "out", 6),
        }
        attempts = _rows_are_lost(spark, tried, directory)
        assert values(broker.bootstrap, tried["topic"]) == everything()
        assert {attempt for _, _, attempt, _ in attempts} == {0}
        if _was_run_again(spark, {stage for stage, *_ in attempts}):
            return
    pytest.fail(f"no stage was run again: {attempts}")


def _rows_are_lost(
    spark: SparkSession, plan: dict[str, Any], directory: Path
) -> list[tuple[int, int, int, int]]:
    """While the query runs, once; the attempts that its tasks have made."""
    local_dir = spark.sparkContext.getConf().get("spark.local.dir")
    assert local_dir is not None
    lose = Once("after write", directory / "mark", DropShuffle(Path(local_dir)))
    hook = Attempts(lose, directory / "notes")
    with at_points(hook):
        sink_driver.files_query(spark, plan).start().awaitTermination()
    assert lose.has_happened
    return hook.noted()


def _was_run_again(spark: SparkSession, stages: set[int]) -> bool:
    internal: Any = spark.sparkContext
    internal._jsc.sc().listenerBus().waitUntilEmpty()  # what happens is noted a moment later
    found = map(spark.sparkContext.statusTracker().getStageInfo, stages)
    return any(each is not None and each.currentAttemptId > 0 for each in found)


def test_a_pause_longer_than_the_transaction(
    spark: SparkSession, kafka: str, plan: dict[str, Any], tmp_path: Path
) -> None:
    plan |= {"bootstrap": kafka, "topic": make_topic(kafka, "out", 2)}
    plan["more"] = {"transaction_timeout_ms": 1000}

    async def state() -> str:
        async with Admin(kafka) as admin:
            return (await admin.describe_transaction(plan["name"])).state

    def pause() -> None:
        eventually(lambda: asyncio.run(state()), lambda state: state != "Ongoing")

    hook = Once("before EndTxn", tmp_path / "mark", pause)
    with at_points(DriverOnly(hook)):
        sink_driver.files_query(spark, plan).start().awaitTermination()
    assert hook.has_happened
    assert values(kafka, plan["topic"]) == everything()


@pytest.mark.long
def test_a_zombie(spark: SparkSession, kafka: str, plan: dict[str, Any]) -> None:
    """A driver stands still, another one takes over, the first one wakes up and must stop; on our
    broker `test_kills` does that."""
    plan |= {"bootstrap": kafka, "topic": make_topic(kafka, "out", 2)}
    first = sink_driver.start(**plan, at="before EndTxn", signal=int(signal.SIGSTOP))
    try:
        eventually(lambda: _state_of(first.pid), lambda state: state == "T", seconds=120)
        sink_driver.files_query(spark, plan).start().awaitTermination()
        os.kill(first.pid, signal.SIGCONT)
        assert sink_driver.result(first) == "onceflow.spark.errors.sink.SinkFenced"
    finally:
        first.kill()
        first.communicate()
    assert values(kafka, plan["topic"]) == everything()


def _state_of(pid: int) -> str:
    """`T` for a process that is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.long
def test_a_driver_is_killed(spark: SparkSession, kafka: str, plan: dict[str, Any]) -> None:
    """On our broker `test_kills` does that."""
    plan |= {"bootstrap": kafka, "topic": make_topic(kafka, "out", 2)}
    dying = sink_driver.start(**plan, at="mid-write")
    assert sink_driver.result(dying) == signal.SIGKILL
    sink_driver.files_query(spark, plan).start().awaitTermination()
    assert values(kafka, plan["topic"]) == everything()
