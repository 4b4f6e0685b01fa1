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
    found = sequence.iterator()
    while found.hasNext():
        yield found.next()


def null_where_it_raises(column: Any) -> Column:
    """The column must be there once, or be a lambda: see above."""
    from pyspark.sql.classic.column import Column as ClassicColumn
    from pyspark.sql.utils import get_active_spark_context

    jvm: Any = get_active_spark_context()._jvm
    convert = jvm.org.apache.spark.sql.classic.ExpressionUtils
    quiet = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(convert.expression(column._jc))
    return ClassicColumn(convert.column(quiet))
