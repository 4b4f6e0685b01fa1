"""What crosses between the driver and the tasks of a job: the context there, reports back.

The function of a query's tasks is made once, with the plan of the query. What changes with each
batch, its transaction above all, goes with the job as a local property of Spark. Spark shows and
logs properties, so a job context holds no secret: logins and the token of the claims are in the
function.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceflow.client import OpenTransaction
from onceflow.spark.sink.claims import ClaimClient, Epoch
from onceflow.spark.sink.routing import TopicLayout

if TYPE_CHECKING:
    from pyspark import SparkContext

PROPERTY: Final = "onceflow.writing"
Reached = Callable[[str], None]
"""Called at named points of a batch: see `reached`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """One job."""

    transaction: OpenTransaction
    """Without claims: those are made in the task."""
    layout: TopicLayout | None
    """None: ask the driver; all topics are known when the first task writes."""
    host: str
    port: int
    """Where the driver answers claims."""
    tasks: int | None
    """How many tasks share the output partitions; None: each writes those that its rows name."""
    is_shuffled: bool
    """Rows are brought to the tasks that write them, else tasks write what they have."""
    reached: Reached

    @property
    def epoch(self) -> Epoch:
        return self.transaction.producer_id, self.transaction.producer_epoch

    def claim_client(self, token: str) -> ClaimClient:
        return ClaimClient(self.host, self.port, token)


@contextmanager
def with_job_context(context: SparkContext, job: JobContext) -> Iterator[None]:
    """Jobs of Spark that this thread starts inside have this context."""
    text = base64.b64encode(pickled(job)).decode()
    of_thread: Any = context
    of_thread.setLocalProperty(PROPERTY, text)
    try:
        yield
    finally:
        of_thread.setLocalProperty(PROPERTY, None)


def job_context_of_task() -> JobContext | None:
    """That of the job which the task of this thread belongs to; None: nothing is to be written."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(PROPERTY)
    if text is None:
        return None
    job: JobContext = unpickled(base64.b64decode(text))
    return job


def pickled(value: object) -> bytes:
    """As Spark sends functions to tasks."""
    data: bytes = _serializer().dumps(value)
    return data


def unpickled(data: bytes) -> Any:
    return _serializer().loads(data)


def _serializer() -> Any:
    from pyspark import serializers

    internal: Any = serializers
    return internal.CloudPickleSerializer()


# --- what a task reports to the driver -----------------------------------------------------------
#
# How many rows each attempt wrote to which partition. The reports of a task are one value of bytes
# in a row of their own: the driver takes it out of the JVM's row with one call.


REPORT: Final = "report"
"""The column of the reports, of a frame that has no other."""
REPORT_SCHEMA: Final = f"{REPORT} binary"
ALL_ROWS: Final = -1
"""As a target: how many rows the task was given."""


class Report(NamedTuple):
    """What a task attempt wrote to one output partition."""

    task: int
    attempt: int
    target: int
    rows: int
    last_sequence: int


def reports_to_bytes(reports: Iterable[Report]) -> bytes:
    """All of one task."""
    return json.dumps(list(reports)).encode()


def reports_from_bytes(data: bytes) -> list[Report]:
    return [Report(*each) for each in json.loads(data)]


# --- points in the life of a batch ---------------------------------------------------------------
#
# `reached` does nothing. Tests and the demo replace it, to show that a process may die at each
# point; the replacement goes to the tasks, too. Tasks reach "before claim", "mid-write" (after each
# portion) and "after write"; the driver reaches "before offsets", "before EndTxn" and "after
# EndTxn".


def nothing(point: str) -> None:
    """What happens at a point."""


reached: Callable[[str], None] = nothing
