"""The ledger of the Spark sink, while weeks pass: a model of a query and of the cluster around it.

The sink's own code decides (`StreamRun`, `BatchWriter`, the ledger, the blocking client); Spark
itself is a checkpoint in memory and tasks that are calls; the broker is simulated. A driver is
stopped as by SIGSTOP in the midst of any call, for hours or weeks, and goes on; it is killed and
started again, soon or late; and while it stands still another driver may be started from the same
checkpoint, which works for a while and is gone when the first one wakes up. Now and then somebody
deletes the ledger's group. Whatever happens, each row is in the output once; or the query refuses
to go on, and says what to do: somebody looks at the output and starts a new query behind its last
row.

    python -m tests.sim.years.ledger [--seeds 20] [--seed 1]
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.errors.requests import ClientError
from onceflow.client.settings.clients import ProducerSettings
from onceflow.client.transactions.handoff import OpenTransaction
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.spark.errors.sink import LedgerConflict, SinkError
from onceflow.spark.sink import (
    batch as batch_run,
    run as sink_run,
    task_plan,
)
from onceflow.spark.sink.batch import BatchWriter
from onceflow.spark.sink.identity import SinkIdentity
from onceflow.spark.sink.ledger import LedgerStart, read_since
from onceflow.spark.sink.options import SinkOptions
from onceflow.spark.sink.run import StreamRun
from onceflow.spark.sink.task_plan import Report
from onceflow.testing.world import World, run_blocking
from onceflow.wire.api import ApiKey
from tests.sim.ledger.blocking_net import blocking_clients
from tests.sim.seed_campaign import try_seeds
from tests.sim.txn.history import Identity, Place, PromiseBroken
from tests.sim.years.clients import Client, make_batch
from tests.sim.years.judge import Seen
from tests.sim.years.machine import ADDRESS, DAY_S, Machine, rare_sweeps
from tests.sim.years.model import OFFSETS_KEPT_MS, Model

T = TypeVar("T")
OUT: Final = Place("out", 0)
LEDGER_TOPIC: Final = "ledger"
NOTES: Final = "onceflow-ledger"
"""How the files begin that say what a ledger has."""
SLEEP_DAYS: Final = (0.01, 1.0, 6.0, 7.2, 9.0, 16.0, 30.0)
IDLE_DAYS: Final = 9.0
YOUNG_DAYS: Final = 0.25
"""A ledger's entry that is not older is known for all of the sleeps that are shorter than brokers
keep it."""
MOST_SLEEPS: Final = 1
"""In one run of a driver."""
TIMEOUT_MS: Final = 60_000


class Shape(NamedTuple):
    """Which protocol is spoken, and for how long a query is watched."""

    version: int = 2
    runs: int = 12
    """Starts of a driver."""
    doubled: bool = False
    """Each driver is stopped soon after its start, and another one started meanwhile."""


class Told(NamedTuple):
    """What happened in a world."""

    did: Counter[str]
    rows: int


class Killed(BaseException):
    """The driver is gone, without any of its last steps."""


class Checkpoint:
    """What Spark keeps of a query: which batches were planned, and which are known to be done."""

    def __init__(self, query_id: str, name: str, first_row: int) -> None:
        self.query_id = query_id
        self.name = name
        self.files: dict[str, str] = {}
        self.done = -1
        self._ends = {-1: first_row}

    def read(self, name: str) -> str | None:
        return self.files.get(name)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.files if name.startswith(prefix)]

    def create(self, name: str, text: str) -> None:
        """As in HDFS: nothing is written over."""
        if name in self.files:
            raise SinkError(f"{name} is there already")
        self.files[name] = text

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def forget_notes(self) -> None:
        """As an earlier release leaves it."""
        for name in self.names(NOTES):
            self.delete(name)

    def plan(self, batch_id: int, end: int, now_ms: int) -> None:
        """As Spark writes it before a batch is run; a batch that was planned stays as it was."""
        if f"offsets/{batch_id}" not in self.files:
            self._ends[batch_id] = end
            when, at = json.dumps({"batchTimestampMs": now_ms}), json.dumps({"rows": end})
            self.files[f"offsets/{batch_id}"] = f"v1\n{when}\n{at}"

    def age_ms(self, now_ms: int) -> int:
        """How old the ledger's entry may be, as far as it is known here: it is younger than the
        plan of the batch that is known to be done, or of that for which the ledger was begun."""
        since = read_since(self, self.done + 1)
        is_begun = since is not None and since.batch_id == self.done + 1
        text = self.files.get(f"offsets/{max(0, self.done + is_begun)}", "")
        return now_ms - json.loads(text.split("\n")[1])["batchTimestampMs"] if text else 0

    def rows(self, batch_id: int) -> range:
        return range(self._ends[batch_id - 1], self._ends[batch_id])


class Files(NamedTuple):
    """A checkpoint as a driver sees it, who may be stopped or killed before any change."""

    checkpoint: Checkpoint
    step: Callable[[], None]

    def read(self, name: str) -> str | None:
        return self.checkpoint.read(name)

    def names(self, prefix: str) -> list[str]:
        return self.checkpoint.names(prefix)

    def create(self, name: str, text: str) -> None:
        self.step()
        self.checkpoint.create(name, text)

    def delete(self, name: str) -> None:
        self.step()
        self.checkpoint.delete(name)


class Output(Client):
    """Writes as the tasks of a batch do, and reads as a consumer does."""

    async def make_topics(self, *names: str) -> None:
        for name in names or (OUT.topic, LEDGER_TOPIC):
            row = {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [{"name": "retention.ms", "value": "-1"}],
            }
            await self.caller.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [row], "timeout": 1000})

    async def write(self, transaction: OpenTransaction, rows: range) -> str:
        identity = Identity(transaction.producer_id, transaction.producer_epoch)
        version = 12 if transaction.transaction_version > 1 else 11
        records: list[tuple[bytes, bytes | None]] = [(b"row", b"%d" % row) for row in rows]
        data = make_batch(identity, 0, records, self.model.clocks.wall(), transactional=True)
        code, _ = await self.produce(OUT, data, transaction.transactional_id, version)
        return code

    async def rows(self) -> list[int]:
        """What readers of committed records see, all of it."""
        seen, position = Seen(0, 0), 0
        while True:
            part = {"partition": 0, "fetch_offset": position, "partition_max_bytes": 1 << 20}
            fields: dict[str, Any] = {
                "replica_id": -1,
                "max_wait": 0,
                "min_bytes": 0,
                "max_bytes": 1 << 24,
            }
            topics = [{"topic": OUT.topic, "partitions": [part]}]
            fields |= {"isolation_level": 1, "topics": topics}
            answer = await self.caller.ask(ApiKey.FETCH, 12, fields)
            row = answer["responses"][0]["partitions"][0]
            seen.take_in(row)
            if not row["records"]:
                return [int(record.value or b"") for _, record in seen.visible()]
            position = seen.batches[-1].header.next_offset


class Run(StreamRun):
    """One driver: all of the sink but what Spark itself does."""

    def __init__(self, world: Query, checkpoint: Checkpoint, settings: ProducerSettings) -> None:
        # Not that of the base class, which asks a Spark session for all of this.
        identity = SinkIdentity.of_query(checkpoint.name, None, LEDGER_TOPIC)
        self._world = world
        self._checkpoint = checkpoint
        self._query_id = checkpoint.query_id
        self._files = Files(checkpoint, world.step)
        self._options = SinkOptions(identity=identity, settings=settings, topic=OUT.topic)
        self._writer = BatchWriter(self._options, offsets_retention_ms=world.told_offsets_kept_ms)
        self._has_taken_over = False
        self._start = LedgerStart(self._files, self._planned_ms)
        at_work: Any = world.lock
        self._at_work = at_work

    @property
    def is_active(self) -> bool:
        return True

    def run_tasks(self, frame: Any, transaction: OpenTransaction) -> list[Report]:
        code = self._world.wait(self._world.output.write(transaction, frame))
        if code != "NONE":
            raise SinkError(f"a task failed: {code}")
        return []

    def close(self) -> None:
        self._writer.close()


class Query:
    """One world: a query, its drivers, and what happens to them."""

    told_offsets_kept_ms = OFFSETS_KEPT_MS
    """What drivers are told of how long offsets are kept; 0 where they may not see it."""

    def __init__(self, world: World, shape: Shape) -> None:
        self._world = world
        self._shape = shape
        self._rand = world.rand.fork("query")
        self.machine = Machine(world, "fsync")
        self.output = Output(self.machine, Model(self.machine.clocks), "tasks")
        self.lock = _NoLock()
        self._available = 0
        self._queries = 0
        self._drivers = 0
        self._checkpoint = self._new_checkpoint(0)
        self._steps_left = -1
        self._then: Callable[[], None] = _nothing
        self._fatal_point = ""

    def wait(self, work: Any) -> Any:
        """Lets the world run until that is done."""
        return self._world.loop.run_until_complete(work)

    def _new_checkpoint(self, first_row: int) -> Checkpoint:
        self._queries += 1
        return Checkpoint(f"query-{self._queries}", f"totals-{self._queries}", first_row)

    def _pass(self, days: float) -> None:
        self.machine.note(f"{days} days pass")
        self.wait(asyncio.sleep(days * DAY_S))
        self.machine.tidy()

    def main(self) -> Told:
        self.wait(self.machine.start())
        self.wait(self.output.make_topics())
        with self._patched():
            for number in range(self._shape.runs):
                try:
                    self._start_and_watch()
                except PromiseBroken as error:
                    before = "\n  ".join(self.machine.diary)
                    raise PromiseBroken(f"run {number}: {error}\nBefore:\n  {before}") from error
        self._steps_left, self._fatal_point = -1, ""
        self._catch_up()
        self.wait(self.machine.stop())
        return Told(self.machine.did, self._available)

    @contextmanager
    def _patched(self) -> Iterator[None]:
        version = self._shape.version
        with (
            pytest.MonkeyPatch.context() as patch,
            blocking_clients(self._world, "driver", self.step),
        ):
            patch.setattr(batch_run, "check_reports", lambda *_: 0)
            patch.setattr(sink_run, "_drain", lambda _: None)
            patch.setattr(task_plan, "reached", self._reached)
            patch.setattr(BlockingCluster, "transaction_version", lambda *_: version)
            yield

    # --- a driver -------------------------------------------------------------------------------

    def _start_and_watch(self) -> None:
        """One life of a driver, and the time until the next."""
        self._choose_fate()
        self._drive(self._checkpoint, 1 + self._rand.randrange(4))
        self._steps_left = -1
        self._check()
        if not self._rand.randrange(4):
            self._delete_ledger()
        elif self._rand.randrange(2):
            self._pass(self._days())

    def _delete_ledger(self) -> None:
        """Only when it is young, and at once before the next start: an entry that brokers may have
        forgotten by age cannot be told from one that was deleted."""
        checkpoint = self._checkpoint
        if checkpoint.age_ms(self._world.clock.wall_ms()) < YOUNG_DAYS * DAY_S * 1000:
            group = f"{checkpoint.name}.ledger"
            answer = self.wait(
                self.output.caller.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [group]})
            )
            code = answer["results"][0]["error_code"]
            self.machine.note(f"the ledger is deleted: {code}")
            self.machine.did["ledger deleted"] += code == "NONE"

    def _drive(self, checkpoint: Checkpoint, batches: int) -> None:
        """Runs batches, as Spark does: what was planned and is not known to be done comes first."""
        self._drivers += 1
        self.machine.note(f"driver {self._drivers} starts {checkpoint.query_id}")
        run = Run(self, checkpoint, self._settings(checkpoint))
        try:
            for _ in range(batches):
                batch_id = checkpoint.done + 1
                if f"offsets/{batch_id}" not in checkpoint.files:
                    self._available += 1 + self._rand.randrange(3)
                    checkpoint.plan(batch_id, self._available, self._world.clock.wall_ms())
                frame: Any = checkpoint.rows(batch_id)
                run.write_batch(frame, batch_id)
                # Spark may not get to note that.
                self.step()
                checkpoint.done = max(checkpoint.done, batch_id)
        except Killed:
            self.machine.note("killed")
        except LedgerConflict as error:
            self.machine.note(f"refused: {str(error)[:90]}")
            self._begin_anew(checkpoint)
        except (SinkError, ClientError) as error:
            self.machine.note(f"failed: {type(error).__name__}")
        finally:
            run.close()

    def _begin_anew(self, checkpoint: Checkpoint) -> None:
        """What the error advises: a new query that begins behind the last row of the output."""
        self.wait(asyncio.sleep(2 * TIMEOUT_MS / 1000))  # nothing is open any more
        if checkpoint is self._checkpoint:
            self._checkpoint = self._new_checkpoint(len(self.wait(self.output.rows())))

    def _settings(self, checkpoint: Checkpoint) -> ProducerSettings:
        return ProducerSettings.of(
            bootstrap_servers=str(BrokerAddress(*ADDRESS)),
            transactional_id=checkpoint.name,
            transaction_timeout_ms=TIMEOUT_MS,
            delivery_timeout_ms=30_000,
            request_timeout_ms=10_000,
        )

    def idle(self, weeks: int) -> list[int]:
        """One driver, which has a batch a week; the rows that are there in the end."""
        self.wait(self.machine.start())
        self.wait(self.output.make_topics())
        checkpoint = self._checkpoint
        with self._patched():
            run = Run(self, checkpoint, self._settings(checkpoint))
            for batch_id in range(weeks):
                self._available += 2
                checkpoint.plan(batch_id, self._available, self._world.clock.wall_ms())
                frame: Any = checkpoint.rows(batch_id)
                run.write_batch(frame, batch_id)
                self._pass(IDLE_DAYS)
            run.close()
        rows: list[int] = self.wait(self.output.rows())
        self.wait(self.machine.stop())
        return rows

    # --- fate -----------------------------------------------------------------------------------

    def _choose_fate(self) -> None:
        """After some of its calls the driver is stopped, or killed."""
        self._steps_left = self._rand.randrange(12 if self._shape.doubled else 90)
        self._fatal_point = ""
        if self._shape.doubled:
            self._then = self._sleep_beside_another
            return
        fates = (self._sleep, self._sleep, self._sleep_beside_another, self._die, _nothing)
        self._then = fates[self._rand.randrange(len(fates))]
        if self._then is _nothing:
            self._fatal_point = ("before EndTxn", "after EndTxn", "")[self._rand.randrange(3)]

    def _reached(self, point: str) -> None:
        """Where a death is worst: the commit is on its way, or done and not noted by Spark."""
        if point == self._fatal_point:
            self._fatal_point = ""
            raise Killed

    def step(self) -> None:
        if self._steps_left > 0:
            self._steps_left -= 1
        elif self._steps_left == 0:
            self._steps_left = -1
            self._then()

    def _days(self) -> float:
        return SLEEP_DAYS[self._rand.randrange(len(SLEEP_DAYS))]

    def _sleep(self) -> None:
        self.machine.note("the driver is stopped")
        self._pass(self._days())
        self.machine.note("the driver goes on")

    def _sleep_beside_another(self) -> None:
        """Spark's cluster takes it for dead, and starts another one; which is gone when the first
        one wakes up."""
        self.machine.note("the driver is stopped")
        self._pass(self._days() / 10)
        self._drive(self._checkpoint, 1 + self._rand.randrange(3))
        self._pass(self._days())
        self.machine.note("the driver goes on")

    def _die(self) -> None:
        raise Killed

    # --- what must be so ------------------------------------------------------------------------

    def _check(self) -> None:
        self.wait(asyncio.sleep(2 * TIMEOUT_MS / 1000))
        rows = self.wait(self.output.rows())
        if rows != list(range(len(rows))):
            raise PromiseBroken(f"the output has {rows}")

    def _catch_up(self) -> None:
        """Undisturbed, the query brings everything to its end."""
        with self._patched():
            for _ in range(6):
                self._drive(self._checkpoint, 2)
                self._check()
        rows = self.wait(self.output.rows())
        if len(rows) != self._available:
            raise PromiseBroken(f"{len(rows)} rows of {self._available} are in the output")


class _NoLock:
    """Drivers are stopped in the midst of their work, and others work then."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _nothing() -> None:
    """All is well."""


def live(seed: int, shape: Shape) -> tuple[Told, str]:
    with rare_sweeps():
        return run_blocking(
            seed,
            lambda world: Query(world, shape).main(),
            max_steps=500_000 * shape.runs,
            max_virtual_seconds=100 * shape.runs * DAY_S,
        )


def idle(version: int, weeks: int) -> list[int]:
    """The rows of a query that has little to do."""
    with rare_sweeps():
        found, _ = run_blocking(
            1,
            lambda world: Query(world, Shape(version)).idle(weeks),
            max_virtual_seconds=20 * weeks * DAY_S,
        )
    return found


def _shape_of(seed: int) -> Shape:
    return Shape((2, 1)[seed % 2], doubled=seed % 3 == 0)


if __name__ == "__main__":
    try_seeds("The ledger of the Spark sink, over weeks.", _shape_of, live)
