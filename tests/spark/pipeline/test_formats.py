"""SQL pipelines: values that Spark would make wrong rows of are dead letters, nothing that a row
can do ends the query, and no name of a column is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import confluent_kafka
import pytest

import onceflow
from onceflow.spark.errors.pipeline import InvalidPipeline, PipelineFailed
from onceflow.spark.formats.format import Format
from onceflow.spark.pipeline.columns import ERROR
from onceflow.spark.pipeline.frames import _judged
from onceflow.spark.pipeline.pipeline import Pipeline
from tests.spark.pipeline.meaning import records_frame, source_plan
from tests.spark.pipeline.world import Read, make_topic, read_all, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEADERS: Final[list[tuple[str, str | bytes | None]]] = [("trace", b"\x00\x01")]
Run = Callable[..., tuple[list[Read], list[Read]]]


@pytest.fixture
def run(broker: onceflow.Broker, spark: SparkSession, tmp_path: Path) -> Run:
    """Writes values, each with a header, runs a pipeline over them, and reads rows and dead
    letters."""

    def done(*values: bytes, **more: Any) -> tuple[list[Read], list[Read]]:
        name = uuid4().hex
        topics = [
            make_topic(broker.bootstrap, f"{kind}-{name}", 1) for kind in ("in", "out", "bad")
        ]
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for value in values:
            producer.produce(topics[0], value, headers=HEADERS)
        assert producer.flush(60) == 0
        found = tables(*topics[:2], **{"dead_letters": {"topic": topics[2]}, **more})
        found["source"]["bootstrap"] = broker.bootstrap
        Pipeline(name=name, checkpoint=tmp_path / name, **found).run(spark, once=True)
        rows, letters = (read_all(broker.bootstrap, topic) for topic in topics[1:])
        return rows, letters

    return done


def told(letters: list[Read]) -> list[tuple[bytes | None, str]]:
    assert all(each.headers["trace"] == b"\x00\x01" for each in letters)
    return [(each.value, each.headers["error"].decode()) for each in letters]


def test_values_that_are_more_or_less_than_one_object(run: Run) -> None:
    good = (b'{"a":{"b":1}}', b' {"a":{"b":"}"}} ', b'{"a":null}\n')
    bad = (
        b'{"a":{"b":1}},"x":7',
        b'{"a":{"b":1}}{"a":{"b":2}}',
        b'{"a":{"b":1}}],[{}',
        b'{"a":null} x',
    )
    rows, letters = run(
        *good, *bad, b'{"a":{"b":"\xff"}}', source={"schema": "a STRUCT<b: STRING>"}
    )
    assert [json.loads(each.value or b"") for each in rows] == [
        {"a": {"b": "1"}},
        {"a": {"b": "}"}},
        {},
    ]
    assert told(letters) == [
        *((value, "the value is not JSON") for value in bad),
        (b'{"a":{"b":"\xff"}}', "the value is not text in UTF-8"),
    ]


@pytest.mark.parametrize("names", [("record", "error"), ("Parsed", "ERROR")])
def test_a_column_may_have_any_name(run: Run, names: tuple[str, str]) -> None:
    one, two = names
    rows, letters = run(
        json.dumps({one: 1, two: "x"}).encode(),
        b"{broken",
        source={"schema": f"{one} INT, {two} STRING, dead_letter INT"},
        rules={"positive": f"{one} > 0"},
    )
    assert [json.loads(each.value or b"") for each in rows] == [{one: 1, two: "x"}]
    assert told(letters) == [(b"{broken", "the value is not JSON")]


def test_names_that_are_taken_are_told_before(tmp_path: Path) -> None:
    found = tables("in", "out")
    found["source"] |= {"schema": "_Key STRING, _onceflow_error INT, m MAP<INT, INT>"}
    with pytest.raises(InvalidPipeline) as raised:
        Pipeline(name="names", checkpoint=tmp_path, **found)
    taken = "names that begin with _onceflow_ are taken; give it another one"
    assert [each.sentence for each in raised.value.problems] == [
        "source.schema: '_Key' is a column that every source has: give it another name",
        f"source.schema: {'_onceflow_error'!r}: {taken}",
        "source.schema: 'm' has a MAP whose keys are not STRING, as JSON needs",
    ]


RAISING = (
    "100 / cents > 1 AND 100 / cents < 1000",
    "CAST(name AS INT) > 1 OR cents > 0",
    "'5' LIKE name",
)


def test_a_rule_that_raises_is_one_that_a_row_does_not_meet(run: Run, spark: SparkSession) -> None:
    values = [b'{"id":1,"name":"5","cents":2}', b'{"id":2,"name":"x\\\\","cents":0}']
    given = {rule: {"cheap": rule, "too": f"NOT ({rule}) IS NULL"} for rule in RAISING}
    source = source_plan(Format.JSON, "id INT, name STRING, cents BIGINT")
    for rule, rules in given.items():
        judged = _judged(records_frame(spark, [*values]), replace(source, rules=rules), Path())
        errors = [row[0] for row in judged.select(ERROR).collect()]
        assert errors == [None, f"breaks the rule cheap: {rule}"]
    rows, letters = run(*values, rules=given[RAISING[0]])
    assert [json.loads(each.value or b"")["id"] for each in rows] == [1]
    assert told(letters) == [(values[1], f"breaks the rule cheap: {RAISING[0]}")]


def test_what_is_no_condition_of_one_row_is_told_before(spark: SparkSession) -> None:
    """And what raises for every row is only one that no row meets."""
    records = records_frame(spark, [b'{"a":1,"s":"x"}', b'{"a":0,"s":"maybe"}'])
    source = source_plan(Format.JSON, "a INT, s STRING")
    chance = "may give another result for the same row each time"
    for rule, problem in {
        "s": "is of type STRING, and not BOOLEAN",
        "null": "is of type VOID, and not BOOLEAN",
        "count(*) > 1": "is about more than one row",
        "rand() < 0.5": chance,
        "aes_encrypt(s, 'abcdefghijklmnop') < X'80'": chance,
        "(SELECT aes_encrypt('a', 'abcdefghijklmnop')) < X'80'": chance,
    }.items():
        with pytest.raises(PipelineFailed, match=problem):
            _judged(records, replace(source, rules={"r": rule}), Path())
    for rule in ("a > 0 OR CAST('x' AS INT) = 1", "a > 0 OR s LIKE '%\\\\'"):
        judged = _judged(records, replace(source, rules={"r": rule}), Path())
        errors = [row[0] for row in judged.select(ERROR).collect()]
        assert errors == [None, f"breaks the rule r: {rule}"]


def test_csv_is_what_it_was(run: Run) -> None:
    """What it writes it also reads, and leaves as it is."""
    lines = (
        *(b'1," x ",""', b"2, x ,", b'3,"a\\"b,c\\\\","\n"', b"4,NA,null", b"5,x,\t", b'6,a"b,"#"'),
        *(b'7,"a"b,c', b'8,"a""b",c', b'9,"a,c', b"", b"x,y,z", b"1,\xff,", b'"",a,b', b"1,a"),
    )
    both = {"format": "csv", "schema": "n INT, s STRING, t STRING"}
    sink = {"format": "csv"}
    rows, letters = run(*lines, source=both, sink=sink)
    assert len(rows) == 6
    assert [value for value, _ in told(letters)] == list(lines[6:])
    again, none = run(*(each.value or b"" for each in rows), source=both, sink=sink)
    assert none == []
    assert [each.value for each in again] == [each.value for each in rows]
    as_json, _ = run(*lines[:6], source=both)
    assert [json.loads(each.value or b"") for each in as_json] == [
        {"n": 1, "s": " x ", "t": ""},
        {"n": 2, "s": " x "},
        {"n": 3, "s": 'a"b,c\\', "t": "\n"},
        {"n": 4, "s": "NA", "t": "null"},
        {"n": 5, "s": "x", "t": "\t"},
        {"n": 6, "s": 'a"b', "t": "#"},
    ]


def test_a_row_of_one_null_is_an_empty_line(run: Run) -> None:
    rows, _ = run(
        b'{"id":1}',
        b'{"id":2,"name":"x"}',
        transform={"sql": "SELECT name FROM source"},
        sink={"format": "csv"},
    )
    assert [each.value for each in rows] == [b"", b"x"]


def test_what_csv_cannot_hold_is_told_before(run: Run) -> None:
    with pytest.raises(
        PipelineFailed, match="the column b is of type BINARY, which CSV cannot hold"
    ):
        run(
            transform={"sql": "SELECT id, CAST(name AS BINARY) AS b FROM source"},
            sink={"format": "csv"},
        )
