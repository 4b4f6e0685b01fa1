"""The error of a query begins with its cause, and names of topics are judged before it starts."""

from __future__ import annotations

import json.decoder
import sys
import traceback
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import onceflow
from onceflow.settings.values import shown
from onceflow.spark.errors.cause import SOURCE_GONE, cause_of, is_source_gone, without_stack
from onceflow.spark.errors.sink import BatchFailed, SinkRefused
from onceflow.spark.errors.source import DataLost, InvalidOptions
from onceflow.spark.sink.options import check_names
from onceflow.spark.source.options import SourceOptions
from tests.unit.spark.errors.spark_errors import GONE

WORKER = """\
batch 0 could not be written after 3 tries: org.apache.spark.api.python.PythonException: \
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "/somewhere/orders.py", line 31, in <lambda>
    bad = F.udf(lambda v: v.nothing, useArrow=False)
                          ^^^^^^^^^
AttributeError: 'str' object has no attribute 'nothing'
 SQLSTATE: 38000"""
SOURCE = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
latestOffset: Traceback (most recent call last):
  File "/lib/onceflow/spark/source_loss.py", line 98, in report
    raise DataLost(f"records are gone")
onceflow.spark.errors.source.DataLost: records are gone: partition orders-0
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ==="""


class OfSpark(Exception):
    """An error as pyspark makes them."""

    def __init__(self, desc: str, stack: str, cause: Exception | None = None) -> None:
        super().__init__(f"{desc}\n\nJVM stacktrace:\n{stack}")
        self._desc, self._stackTrace, self._cause = desc, stack, cause


def test_what_a_function_raised_comes_first_with_its_line() -> None:
    told = cause_of(BatchFailed(WORKER))
    assert told.splitlines() == [
        "AttributeError: 'str' object has no attribute 'nothing'",
        "  where: /somewhere/orders.py, line 31, in <lambda>",
        "  what failed: batch 0 could not be written after 3 tries",
    ]


@pytest.mark.parametrize(
    "file",
    [
        json.decoder.__file__,
        pyarrow.__file__,
        onceflow.__file__,
        "/usr/lib/python3.12/json/decoder.py",
        "/opt/env/lib64/python3/dist-packages/a.py",
        "/opt/spark/python/lib/pyspark.zip/pyspark/sql/types.py",
    ],
)
def test_where_is_the_users_own_line_and_not_that_of_a_library_it_calls(file: str) -> None:
    called = f'  File "{file}", line 355, in raw_decode\n    raise JSONDecodeError(...)\n'
    told = cause_of(BatchFailed(WORKER.replace("AttributeError: ", f"{called}AttributeError: ")))
    assert "\n  where: /somewhere/orders.py, line 31, in <lambda>\n" in told
    alone = WORKER.replace("/somewhere/orders.py", file)
    assert f"\n  where: {file}, line 31, in <lambda>\n" in cause_of(BatchFailed(alone))


def test_a_project_may_live_where_its_python_does() -> None:
    own = WORKER.replace("/somewhere/orders.py", str(Path(sys.prefix) / "orders.py"))
    called = f'  File "{json.decoder.__file__}", line 355, in raw_decode\n'
    told = cause_of(BatchFailed(own.replace("AttributeError: ", f"{called}AttributeError: ")))
    assert f"\n  where: {sys.prefix}/orders.py, line 31, in <lambda>\n" in told


def test_what_the_source_raised_comes_first() -> None:
    told = cause_of(OfSpark(SOURCE, "x" * 20_000))
    assert told.startswith("DataLost: records are gone: partition orders-0\n  where: ")


def test_what_the_sink_raised_is_told_as_it_is() -> None:
    assert cause_of(SinkRefused(["no"])).startswith("SinkRefused: this cannot be written")
    assert cause_of(OfSpark("Job aborted", "")) == ""


@pytest.mark.parametrize("kind", ["net.SocketException: Broken pipe", "io.EOFException"])
def test_a_source_whose_process_is_gone_is_known(kind: str) -> None:
    stack = GONE.replace("net.SocketException: Connection reset", kind)
    assert is_source_gone(OfSpark("[STREAM_FAILED]", stack))
    assert is_source_gone(OfSpark("[STREAM_FAILED]", "", OfSpark("", stack)))
    assert cause_of(OfSpark("[STREAM_FAILED]", stack)) == SOURCE_GONE
    assert not is_source_gone(OfSpark("", stack.replace("PythonStreamingSourceRunner", "Other")))
    assert not is_source_gone(OfSpark(SOURCE, GONE.split("Caused")[0]))


def test_an_error_leaves_its_stack_behind() -> None:
    def deep(count: int) -> None:
        if count:
            deep(count - 1)
        try:
            raise ValueError("x" * 20_000)
        except ValueError as error:
            raise BatchFailed("batch 3 failed") from error

    with pytest.raises(BatchFailed) as raised:
        deep(50)
    try:
        raise without_stack(raised.value) from None
    except BatchFailed:
        text = traceback.format_exc()
    assert len(text) < 500
    assert text.endswith("BatchFailed: batch 3 failed\n")
    assert isinstance(raised.value.__cause__, ValueError), "whoever wants it has all of it"


@pytest.mark.parametrize("error", [SinkRefused(["a", "b"]), DataLost("c"), OfSpark("d", "e")])
def test_every_error_is_told_in_its_own_words(error: Exception) -> None:
    made = without_stack(error)
    assert (type(made), str(made)) == (type(error), str(error))


@pytest.mark.parametrize("name", ["no?topic", "", ".", "..", "x" * 250, "two words", "é"])
def test_names_that_no_topic_can_have(name: str) -> None:
    for argument in ("topic", "dead_letter_topic", "ledger_topic"):
        (problem,) = check_names({argument: name})
        assert problem.startswith(
            f"{argument} = {shown(name)} is not allowed; it may be a topic name: up to 249"
        )
    assert list(check_names({"topic": "x" * 249, "name": "x" * 200, "group": None})) == []
    assert len(list(check_names({"name": "x" * 201}))) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"subscribe": "orders,no?topic"}, r"up to 249 ASCII letters.*'no[?]topic' is not one"),
        ({"assign": '{"no?topic":[0]}'}, r"'no[?]topic' is not a topic name: up to 249 ASCII"),
    ],
)
def test_a_source_refuses_such_names_when_it_is_loaded(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOptions, match=told):
        SourceOptions.of({"kafka.bootstrap.servers": "a:1", **given})
