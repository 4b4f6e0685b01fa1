"""What the tasks of a job are to do, and what they report.

A plan comes to its tasks in two parts. The function of a query's tasks is made once, with the plan
of the query, before there is a transaction; it holds the secrets: logins, and the token of the
claims. All else goes with each job as a local property, which Spark shows and logs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from onceflow.client import OpenTransaction, ProducerSettings
from onceflow.spark.sink.claims import ClaimClient, Epoch
from onceflow.spark.sink.routing import TopicLayout

if TYPE_CHECKING:
    from pyspark import SparkContext

PROPERTY: Final = "onceflow.writing"
_SECRETS: Final = "secrets"
Reached = Callable[[str], None]
"""Called at named points of a batch: see `reached`."""


@dataclass(frozen=True, slots=True)
class TaskSecrets:
    """What only the function of a query's tasks holds."""

    settings: ProducerSettings
    token: str = field(repr=False)
    """Of the claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """What the tasks of one job work with."""

    secrets: TaskSecrets
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

    @property
    def claims(self) -> ClaimClient:
        return ClaimClient(self.host, self.port, self.secrets.token)

    @contextmanager
    def goes_with_jobs(self, context: SparkContext) -> Iterator[None]:
        """Jobs of Spark that this thread starts inside bring the plan to their tasks."""
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        del shown[_SECRETS]
        of_thread: Any = context
        of_thread.setLocalProperty(PROPERTY, base64.b64encode(pickled(shown)).decode())
        try:
            yield
        finally:
            of_thread.setLocalProperty(PROPERTY, None)

    @classmethod
    def of_task(cls, secrets: TaskSecrets) -> Self | None:
        """That of the job which the task of this thread belongs to; None: nothing is to be
        written."""
        from pyspark import TaskContext

        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(PROPERTY)
        return None if text is None else cls(secrets=secrets, **unpickled(base64.b64decode(text)))


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
