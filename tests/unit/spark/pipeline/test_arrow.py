"""Values into Arrow columns and back, and what a task of an Arrow pipeline makes of its spans."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import onceflow
from onceflow.client.admin.admin import Admin
from onceflow.client.producer.producer import Producer
from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.worker.reader import BlockingReader
from onceflow.records.partitioning import partitions_for_keys
from onceflow.spark.errors.sink import RowRefused
from onceflow.spark.formats.arrow_encode import TableUnusable, encode_values
from onceflow.spark.formats.arrow_parse import Parser
from onceflow.spark.formats.format import Format
from onceflow.spark.formats.schema import parse_schema
from onceflow.spark.pipeline.arrow_task import ArrowTask, shared_out
from onceflow.spark.pipeline.plan import SinkPlan
from onceflow.spark.sink.routing import TopicLayout
from onceflow.spark.source.offsets import OffsetSpan
from onceflow.spark.source.task import READERS


def parser(form: Format, schema: str = "", **options: str) -> Parser:
    return Parser(form, parse_schema(schema) if schema else (), options)


def parse(made: Parser, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    found = made.parse(pa.array(values, pa.binary()))
    good = found.good if found.good is not None else list(range(len(values)))
    assert len(good) == found.table.num_rows
    assert set(good) | set(found.bad) == set(range(len(values)))
    return found.table.to_pylist(), found.bad


def test_json_and_what_is_none() -> None:
    made = parser(
        Format.JSON, "a INT NOT NULL, t TIMESTAMP, l ARRAY<INT>, s STRUCT<x: DECIMAL(5,2)>"
    )
    rows, bad = parse(
        made,
        b'{"a": 1, "t": "2026-01-01T00:00:00Z", "l": [1, null], "s": {"x": "1.50"}, "other": 3}',
        b'{"a": "one"}',
        b'\\n{\\n"a"\\n:\\n2}\\n'.replace(b"\\n", b"\n"),
        b"",
        b"  ",
        None,
        b"null",
        b"5",
        b'{"a": 1}{"a": 2}',
        b'{"a": 1}}\n{"v": {"a": 2}',
        b'{"t": null}',
        b'{"a": 3, "l": []}',
        b"\xff",
    )
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert rows == [
        {"a": 1, "t": moment, "l": [1, None], "s": {"x": Decimal("1.50")}},
        {"a": 2, "t": None, "l": None, "s": None},
        {"a": 3, "t": None, "l": [], "s": None},
    ]
    assert sorted(bad) == [1, 3, 4, 5, 6, 7, 8, 9, 10, 12]
    assert bad[5] == "the value is null"
    assert bad[10] == "a is null"
    assert bad[1] == "the value does not fit the schema of the JSON"
    assert bad[12] == "the value is not text in UTF-8"
    assert {bad[row] for row in (3, 4, 6, 7, 8, 9)} == {"the value is not JSON"}


def test_csv_and_what_is_none() -> None:
    rows, bad = parse(
        parser(Format.CSV, "n INT, s STRING", sep=";"),
        b"1;x",
        b"2;",
        b"one;y",
        b"3;a;b",
        b'4;"a;b"',
        b"5;a\n6;b",
        b"7;z",
    )
    assert [each["n"] for each in rows] == [1, 2, 4, 7]
    assert rows[2]["s"] == "a;b"
    assert sorted(bad) == [2, 3, 5]


def test_text_and_bytes() -> None:
    rows, bad = parse(parser(Format.TEXT), "é".encode(), b"\xff", b"")
    assert rows == [{"value": "é"}, {"value": ""}]
    assert sorted(bad) == [1]
    assert parse(parser(Format.RAW), b"\xff", None) == ([{"value": b"\xff"}, {"value": None}], {})


def test_nothing_good_is_an_empty_table() -> None:
    found = parser(Format.JSON, "a INT").parse(pa.array([b"x"], pa.binary()))
    assert found.table.num_rows == 0
    assert found.table.column_names == ["a"]


def test_what_arrow_cannot_read_is_told_before() -> None:
    made = parser(Format.JSON, "a ARRAY<MAP<STRING, INT>>, b BINARY, c INT", mode="x")
    assert list(made.problems()) == [
        "the schema has 'a', and Arrow reads no MAP out of JSON",
        "the schema has 'b', and Arrow reads no BINARY out of JSON",
        "format_options has 'mode', which Arrow pipelines do not know",
    ]
    assert list(parser(Format.CSV, "a INT", sep=";").problems()) == []


# --- the way out --------------------------------------------------------------------------------

TABLE = pa.table(
    {
        "t": pa.array(
            [datetime(2026, 1, 1, 0, 0, 0, 123456, UTC), None], pa.timestamp("us", "UTC")
        ),
        "n": pa.array(["2026-01-01T00:00:00.5", None]).cast(pa.timestamp("us")),
        "d": pa.array([date(2026, 1, 2), None]),
        "f": [1.5, float("nan")],
        "dc": pa.array([Decimal("1.10"), None], pa.decimal128(5, 2)),
        "s": ['q"\\x\n,é', None],
        "b": [True, None],
        "i": [-5, 2**40],
    }
)


def test_json_as_spark_writes_it() -> None:
    """The first line is what Spark's to_json gives for the same row."""
    nested = TABLE.append_column("a", pa.array([[1, None], None])).append_column(
        "st", pa.array([{"x": 1, "y": b"\x01\x02"}, None])
    )
    one, two = encode_values(nested, Format.JSON, {}).to_pylist()
    assert one.decode() == (
        '{"t":"2026-01-01T00:00:00.123Z","n":"2026-01-01T00:00:00.500","d":"2026-01-02","f":1.5,'
        '"dc":1.10,"s":"q\\"\\\\x\\n,é","b":true,"i":-5,"a":[1,null],"st":{"x":1,"y":"AQI="}}'
    )
    assert two == b'{"f":"NaN","i":1099511627776}'


def test_csv_as_spark_writes_it() -> None:
    one, two = encode_values(TABLE.drop_columns(["f"]), Format.CSV, {}).to_pylist()
    assert one.decode() == (
        '2026-01-01T00:00:00.123Z,2026-01-01T00:00:00.500,2026-01-02,1.10,"q\\"\\\\x\n,é",true,-5'
    )
    assert two == b",,,,,,1099511627776"


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "a": st.none() | st.text(st.characters(codec="utf-8")),
                'é"': st.none() | st.integers(-(2**63), 2**63 - 1),
                "b": st.none() | st.booleans(),
                "l": st.none()
                | st.lists(
                    st.none() | st.text(st.characters(codec="utf-8"), max_size=3), max_size=2
                ),
            }
        ),
        min_size=1,
        max_size=8,
    )
)
def test_json_is_what_it_was(rows: list[dict[str, Any]]) -> None:
    types: list[tuple[str, pa.DataType]] = [
        ("a", pa.string()),
        ('é"', pa.int64()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.string())),
    ]
    values = encode_values(
        pa.Table.from_pylist(rows, pa.schema(types)), Format.JSON, {}
    ).to_pylist()
    assert [json.loads(value) for value in values] == [
        {name: value for name, value in row.items() if value is not None} for row in rows
    ]


def test_tables_that_cannot_be_written() -> None:
    table = pa.table({"a": [[1]], "b": [2]})
    with pytest.raises(TableUnusable, match="the column a is of type list"):
        encode_values(table, Format.CSV, {})
    with pytest.raises(TableUnusable, match="none of them is called value"):
        encode_values(table, Format.TEXT, {})
    with pytest.raises(TableUnusable, match="raw takes text or bytes"):
        encode_values(table.select(["b"]), Format.RAW, {})
    assert encode_values(table.select(["b"]), Format.TEXT, {}).to_pylist() == [b"2"]
    with pytest.raises(TableUnusable, match="without columns"):
        encode_values(pa.table({}), Format.JSON, {})


# --- who reads what -----------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(1, 50)),
        max_size=20,
        unique_by=lambda each: each[:2],
    ),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_spans_of_one_target_are_in_one_task(
    sizes: list[tuple[str, int, int]], targets: int, tasks: int
) -> None:
    spans = [OffsetSpan(topic, number, 0, size) for topic, number, size in sizes]
    shares = shared_out(spans, targets, tasks)
    assert sorted(span for share in shares for span in share) == sorted(spans)
    assert len(shares) <= tasks
    homes: dict[int, int] = {}
    for number, share in enumerate(shares):
        for span in share:
            assert homes.setdefault(span.partition % targets, number) == number


# --- a task -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spans() -> Iterator[tuple[str, list[OffsetSpan]]]:
    """A broker with some orders in a topic of two partitions, and the spans of all of them."""
    with onceflow.Broker() as broker:
        asyncio.run(_fill(broker.bootstrap))
        with BlockingReader(ReaderSettings.of({"bootstrap.servers": broker.bootstrap})) as reader:
            ends = [reader.ends("orders", number) for number in (0, 1)]
        yield (
            broker.bootstrap,
            [
                OffsetSpan("orders", number, first, last)
                for number, (first, last) in enumerate(ends)
            ],
        )
        READERS.close()


async def _fill(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic("orders", partitions=2)
    async with Producer(bootstrap) as producer:
        for number in range(20):
            key, value = str(number).encode(), json.dumps({"id": number}).encode()
            await producer.send("orders", value, key=key)
        await producer.send("orders", b"broken", key=b"x", headers=[("trace", b"1")])


LAYOUT = TopicLayout((("out", 2), ("bad", 2)))


def task(
    bootstrap: str, function: Any, *, dead_letters: str | None = "bad", **sink: Any
) -> ArrowTask:
    return ArrowTask(
        settings=ReaderSettings.of({"bootstrap.servers": bootstrap}),
        fail_on_data_loss=True,
        parser=parser(Format.JSON, "id BIGINT NOT NULL"),
        function=function,
        sink=SinkPlan(topic="out", format=Format.JSON, **sink),
        partitions=2,
        dead_letters=dead_letters,
    )


def odd_refused(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    is_odd = pa.array([int(number or 0) % 2 == 1 for number in table["id"].to_pylist()])
    return table.filter(pc.invert(is_odd)), table.filter(is_odd)


def test_a_task_writes_rows_where_they_were(spans: tuple[str, list[OffsetSpan]]) -> None:
    bootstrap, wanted = spans
    made = task(bootstrap, odd_refused, key="_key", headers={"number": "id"})
    written = [row for rows in made.rows(wanted, LAYOUT) for row in rows.to_pylist()]
    good = [row for row in written if row["target"] < 2]
    bad = [row for row in written if row["target"] >= 2]
    assert sorted(int(row["key"]) for row in good) == list(range(0, 20, 2))
    for row in good:
        assert row["value"] == b'{"id":%s}' % row["key"]
        assert row["headers"] == [{"key": "number", "value": row["key"]}]
        assert row["target"] == partitions_for_keys(pa.array([row["key"]]), 2)[0].as_py()
    refused = {row["key"]: {each["key"]: each["value"] for each in row["headers"]} for row in bad}
    assert sorted(refused) == sorted([b"x", *(b"%d" % number for number in range(1, 20, 2))])
    assert refused[b"1"]["error"] == b"refused by the function"
    assert refused[b"x"]["trace"] == b"1"
    assert refused[b"x"]["source.topic"] == b"orders"


@pytest.mark.parametrize(
    ("function", "more", "said"),
    [
        (lambda table: table.set_column(0, "id", pc.add(table["id"], 1)), {"key": "id"}, "stay in"),
        (lambda table: table, {"key": "nobody"}, "there is no column 'nobody'; the function"),
        (lambda table: 5, {}, "the function returned int for orders-"),
        (lambda table: (table, table.select(["id"])), {}, "bad rows need the column _offset"),
        (lambda table: 1 / 0, {}, "the function raised ZeroDivisionError: division by zero ("),
        (lambda table: table, {"dead_letters": None}, "cannot be used: the value is not JSON"),
        (
            lambda table: (table, pa.table({"_offset": [-1]})),
            {},
            "an _offset that is none of the rows it was made of",
        ),
    ],
)
def test_what_a_function_does_wrong_is_told(
    spans: tuple[str, list[OffsetSpan]], function: Any, more: dict[str, Any], said: str
) -> None:
    bootstrap, wanted = spans
    with pytest.raises(RowRefused) as raised:
        list(task(bootstrap, function, **more).rows(wanted, LAYOUT))
    assert said in str(raised.value)


def test_keys_may_stay_elsewhere_when_that_is_said(spans: tuple[str, list[OffsetSpan]]) -> None:
    bootstrap, wanted = spans

    def one_key(table: pa.Table) -> pa.Table:
        return table.append_column("name", pa.array(["all"] * table.num_rows))

    made = task(bootstrap, one_key, key="name", partition="source")
    rows = [row for rows in made.rows(wanted, LAYOUT) for row in rows.to_pylist()]
    assert {row["target"] for row in rows if row["key"] == b"all"} == {0, 1}
