"""Rules as columns of Spark that cannot end a query: a condition that raises for a row (division by
zero, a cast of a text that is no number, with Spark's ANSI mode) is one that the row does not meet.

Spark has an expression that makes null of what raises inside of it, `TryEval`, but it also takes
what occurs twice in a query out of where it stands, and evaluates it before. It never does that
with the body of a lambda; so a condition that may raise becomes one. That costs a part of a
microsecond for each row, and conditions that cannot raise are left as they are.

Where Spark allows no lambda (functions of Python, subqueries) a condition that raises does end the
query.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from onceflow.spark.errors import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NEVER_RAISE: Final = frozenset(
    {
        *("Alias", "AttributeReference", "Literal", "CaseWhen", "Coalesce", "If"),
        *("And", "Or", "Not", "IsNull", "IsNotNull", "IsNaN", "In", "InSet", "Between"),
        *("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"),
        *("GreaterThan", "GreaterThanOrEqual", "Contains", "StartsWith", "EndsWith"),
        *("Length", "Lower", "Upper"),
    }
)
"""Spark's expressions, by their classes."""


def is_met(frame: DataFrame, condition: str) -> Column:
    """Whether a row of the frame meets a condition: true or false, never null. Raises Spark's
    errors for a condition that means nothing there; `check_condition` comes before."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    met = F.expr(condition)
    if _may_raise(frame.select(met)):
        with suppress(AnalysisException):  # where there can be no lambda
            quiet = null_where_it_raises(F.exists(F.array(F.lit(0)), lambda _: F.expr(condition)))
            frame.select(quiet)
            met = quiet
    return F.coalesce(met, F.lit(False))


def _may_raise(checked: Any) -> bool:
    (condition,) = each_of(checked._jdf.queryExecution().analyzed().projectList())
    return _may_raise_inside(condition)


def _may_raise_inside(expression: Any) -> bool:
    name = expression.getClass().getSimpleName()
    children = list(each_of(expression.children()))
    if name == "Like" and _is_safe_pattern(children[1]):
        return _may_raise_inside(children[0])
    return name not in _NEVER_RAISE or any(map(_may_raise_inside, children))


def _is_safe_pattern(expression: Any) -> bool:
    """One that a row has may end with an escape, and so may one that the rule has."""
    is_literal = expression.getClass().getSimpleName() == "Literal"
    return bool(is_literal and "\\" not in expression.toString())


def each_of(sequence: Any) -> Any:
    """The members of a sequence of Scala."""
    members = sequence.iterator()
    while members.hasNext():
        yield members.next()


def null_where_it_raises(column: Any) -> Column:
    """The column must be there once, or be a lambda: see above."""
    from pyspark.sql.classic.column import Column as ClassicColumn
    from pyspark.sql.utils import get_active_spark_context

    jvm: Any = get_active_spark_context()._jvm
    convert = jvm.org.apache.spark.sql.classic.ExpressionUtils
    quiet = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(convert.expression(column._jc))
    return ClassicColumn(convert.column(quiet))


# --- a rule must give the same answer each time --------------------------------------------------
#
# Good rows and dead letters are two branches of a query, and rules are evaluated in each. A row
# that is good in one and bad in the other would be written twice, or not at all.


_RANDOM: Final = "AesEncrypt"
"""The one expression of Spark that takes random numbers (for what each encryption begins with), and
is deterministic by what Spark says."""
_SUBQUERIES: Final = ("ScalarSubquery", "Exists", "ListQuery")


def check_condition(frame: DataFrame, rule: str, condition: str) -> None:
    """Raises `PipelineFailed` for what is no condition of a row, or one of chance, and Spark's own
    errors for what means nothing for the frame."""
    internal: Any = frame.selectExpr(condition)
    kinds = [field.dataType.simpleString() for field in internal.schema.fields]
    subject = f"the rule {rule!r} ({condition})"
    where = f"rules.{rule}"
    if kinds != ["boolean"]:
        raise PipelineFailed(
            f"{subject} is of type {', '.join(kinds).upper()}, and not BOOLEAN",
            where=where,
            advice="write a condition, such as column IS NOT NULL, or column = 'true'",
        )
    analyzed = internal._jdf.queryExecution().analyzed()
    if analyzed.nodeName() != "Project":
        raise PipelineFailed(
            f"{subject} is about more than one row",
            where=where,
            advice="leave functions like count() and sum() out of rules; the transform may have "
            "them",
        )
    (expression,) = each_of(analyzed.projectList())
    if not expression.deterministic() or _is_random(expression):
        raise PipelineFailed(
            f"{subject} may give another result for the same row each time: "
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
