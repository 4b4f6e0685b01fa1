"""Rules are conditions of one row, and have to say the same of it each time they are asked: good
rows and dead letters are two branches of a query, for each of which rules are evaluated. A row that
is good in one and bad in the other would be written twice, and a row that is the opposite not at
all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onceflow.spark.errors import PipelineFailed
from onceflow.spark.pipeline.rules import each_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RANDOM: Final = "AesEncrypt"
"""The one expression of Spark that takes random numbers (for what each encryption begins with), and
is deterministic by what Spark says."""
_SUBQUERIES: Final = ("ScalarSubquery", "Exists", "ListQuery")


def check_condition(frame: DataFrame, rule: str, condition: str) -> None:
    """Raises `PipelineFailed` for what is no condition of a row, or one of chance, and Spark's own
    errors for what means nothing for the frame."""
    internal: Any = frame.selectExpr(condition)
    kinds = [field.dataType.simpleString() for field in internal.schema.fields]
    told = f"the rule {rule!r} ({condition})"
    where = f"rules.{rule}"
    if kinds != ["boolean"]:
        raise PipelineFailed(
            f"{told} is of type {', '.join(kinds).upper()}, and not BOOLEAN",
            where=where,
            advice="write a condition, such as column IS NOT NULL, or column = 'true'",
        )
    analyzed = internal._jdf.queryExecution().analyzed()
    if analyzed.nodeName() != "Project":
        raise PipelineFailed(
            f"{told} is about more than one row",
            where=where,
            advice="leave functions like count() and sum() out of rules; the transform may have "
            "them",
        )
    (found,) = each_of(analyzed.projectList())
    if not found.deterministic() or _is_random(found):
        raise PipelineFailed(
            f"{told} may say something else of the same row each time: "
            "rows would be lost or written twice",
            where=where,
            advice="leave functions like rand(), uuid() and aes_encrypt() out of rules; to take a "
            "sample, compare a hash of the row: pmod(xxhash64(_topic, _partition, _offset), 100) "
            "< 50",
        )


def _is_random(expression: Any) -> bool:
    name = expression.getClass().getSimpleName()
    if name in _SUBQUERIES and _has_random(expression.plan()):
        return True
    return name == _RANDOM or any(map(_is_random, each_of(expression.children())))


def _has_random(plan: Any) -> bool:
    return any(map(_is_random, each_of(plan.expressions()))) or any(
        map(_has_random, each_of(plan.children()))
    )
