"""What is left of Spark's long texts when an error is told."""

from __future__ import annotations

from pathlib import Path

from onceflow.spark.errors.cause import Cause, explain, find_cause
from onceflow.spark.errors.pipeline import PipelineFailed
from onceflow.spark.errors.sink import BatchFailed, SinkFenced

BASE = Path("/pipelines/totals")
FUNCTION = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage \
failure: Task 0 in stage 1.0 failed 1 times, most recent failure: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/venv/pyspark/worker.py", line 100, in main
    process()
  File "/pipelines/totals/mine.py", line 12, in clean
    return number / 0
           ~~~~~~~^~~
  File "/venv/other.py", line 3, in divide
    raise
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
\tat java.lang.Thread.run(Thread.java:840)
"""
RAISED = """\
Job aborted due to stage failure: Task 0 failed 4 times, most recent failure: Lost task 0.3: \
org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] the record at offset 3 of a-0 \
cannot be used: id is null SQLSTATE: P0001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:1)
Caused by: something
"""
ANALYSIS = """\
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. Did you mean `y`? \
SQLSTATE: 42703; line 1 pos 7;
'Project ['x]
+- SubqueryAlias source
"""


def test_an_exception_of_a_function_with_the_line_of_the_users_file() -> None:
    assert find_cause(FUNCTION, BASE) == Cause(
        "ZeroDivisionError", "division by zero", "/pipelines/totals/mine.py, line 12, in clean"
    )
    with_state = FUNCTION.partition("\n\n\tat ")[0] + "\n SQLSTATE: 38000"
    assert find_cause(with_state, BASE) == find_cause(FUNCTION, BASE)
    told = explain(RuntimeError(FUNCTION), BASE)
    assert isinstance(told, PipelineFailed)
    assert str(told) == (
        "ZeroDivisionError: division by zero\n  where: /pipelines/totals/mine.py, line 12, in clean"
    )


def test_a_condition_of_spark() -> None:
    told = explain(RuntimeError(RAISED), BASE)
    assert isinstance(told, PipelineFailed)
    assert told.what == "the record at offset 3 of a-0 cannot be used: id is null"
    assert "[dead_letters]" in told.advice
    told = explain(RuntimeError(ANALYSIS), BASE, "transform.sql")
    assert isinstance(told, PipelineFailed)
    assert told.what == "A column with name `x` cannot be resolved. Did you mean `y`?"
    assert told.where == "transform.sql"
    assert told.advice.startswith("look at the names in schema")


def test_what_was_raised_on_purpose_stays_unless_it_holds_a_trace() -> None:
    fenced = SinkFenced("another driver writes as 'totals'")
    assert explain(fenced, BASE) is fenced
    told = explain(BatchFailed(f"batch 3 could not be written: {FUNCTION}"), BASE)
    assert isinstance(told, PipelineFailed)
    assert told.what == "ZeroDivisionError: division by zero"


def test_what_nobody_knows_is_told_as_it_is() -> None:
    told = explain(OSError("no such thing"), BASE)
    assert str(told) == "OSError: no such thing"
    assert len(str(explain(OSError("x" * 10_000), BASE))) < 2100


def test_the_log_is_named_where_there_is_one() -> None:
    told = PipelineFailed("what", "where", "advice").logged_in(Path("/a.log"))
    assert str(told).splitlines() == [
        "what",
        "  where: where",
        "  what to do: advice",
        "  all that Spark says: /a.log",
    ]
