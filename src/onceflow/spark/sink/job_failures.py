"""Why a job of Spark has failed in the first place.

What a job raises is how its last task attempt ended. Where only the first one may write, that is a
refusal, or that the job was cancelled; Spark's own book of tasks has what came before.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext

_PATIENCE_MS: Final = 5000
"""Spark notes how tasks end a moment later."""
_JVM_STACK: Final = "\n\tat "


def first_cause(context: SparkContext, tag: str) -> str | None:
    """How the first task attempt ended that failed in the jobs with this tag, without the stack of
    the JVM; None when it is not known."""
    with suppress(Exception):  # whatever is wrong here, the job's own error is told
        internal: Any = context
        spark = internal._jsc.sc()
        spark.listenerBus().waitUntilEmpty(_PATIENCE_MS)
        failed = list(_failed(internal._jvm, spark.statusStore(), tag))
        if failed:
            _, message = min(failed)
            return message.partition(_JVM_STACK)[0].strip()
    return None


def _failed(jvm: Any, store: Any, tag: str) -> Iterator[tuple[int, str]]:
    """Of each stage the first attempt that failed: when it was launched, and its error."""
    api = jvm.org.apache.spark.status.api.v1
    statuses = jvm.java.util.ArrayList()
    statuses.add(api.TaskStatus.FAILED)
    for job in _each(store.jobsList(None)):
        if not job.jobTags().contains(tag):
            continue
        for stage in _each(job.stageIds()):
            found = store.taskList(stage, 0, 0, 1, api.TaskSorting.ID, statuses)
            for task in _each(found):
                yield task.launchTime().getTime(), task.errorMessage().getOrElse(None) or ""


def _each(sequence: Any) -> Iterator[Any]:
    found = sequence.iterator()
    while found.hasNext():
        yield found.next()
