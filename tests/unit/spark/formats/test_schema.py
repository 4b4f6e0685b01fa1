"""Schemas as Spark writes them, read without a JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest

from onceflow.spark.formats.schema import (
    Field,
    ListOf,
    MapOf,
    Plain,
    SchemaMalformed,
    StructOf,
    arrow_schema,
    parse_schema,
    spelled,
)


def test_columns_and_types() -> None:
    text = """id BIGINT NOT NULL, `odd name` : string COMMENT 'it, is', amount DECIMAL(12, 2),
        plain decimal, tags ARRAY<STRING>, name varchar(20),
        where STRUCT<city: STRING, at MAP<STRING, ARRAY<INT>> NOT NULL>"""
    assert parse_schema(text) == (
        Field("id", Plain("bigint"), nullable=False),
        Field("odd name", Plain("string")),
        Field("amount", Plain("decimal", (12, 2))),
        Field("plain", Plain("decimal", (10, 0))),
        Field("tags", ListOf(Plain("string"))),
        Field("name", Plain("string")),
        Field(
            "where",
            StructOf(
                (
                    Field("city", Plain("string")),
                    Field("at", MapOf(Plain("string"), ListOf(Plain("int"))), nullable=False),
                )
            ),
        ),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the name of a column is expected where it ends (position 1)"),
        ("id", "the type of 'id' is expected where it ends (position 3)"),
        (
            "id BIGNIT",
            "'id' has the type 'BIGNIT' (position 4), which is none; did you mean 'BIGINT'?",
        ),
        ("id INT name STRING", "',' is expected where 'name' stands (position 8)"),
        ("id INT,", "the name of a column is expected where it ends"),
        ("id ARRAY<INT", "'>' is expected where it ends"),
        ("id MAP<INT>", "',' is expected where '>' stands"),
        ("id STRUCT<a INT", "',' or '>' is expected where it ends"),
        ("id INT(3)", "'id': INT takes no numbers"),
        ("id DECIMAL(39)", "'id': DECIMAL takes up to 38 digits"),
        ("id DECIMAL(3,5)", "'id': DECIMAL takes up to 38 digits"),
        ("id INT NOT NUL", "NULL is expected where 'NUL' stands"),
        ("id INT; x INT", "';' has no place in a schema"),
        ("id INT, ID STRING", "the column 'id' is there twice"),
        ("id INT COMMENT x", "a text in single quotes is expected where 'x' stands"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(SchemaMalformed) as raised:
        parse_schema(text)
    assert said in str(raised.value)


def test_the_types_of_arrow() -> None:
    found = arrow_schema(
        parse_schema("a INT NOT NULL, b TIMESTAMP, c ARRAY<STRUCT<x: DATE>>, d MAP<STRING, DOUBLE>")
    )
    assert found == pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            pa.field("b", pa.timestamp("us", tz="UTC")),
            pa.field("c", pa.list_(pa.struct([pa.field("x", pa.date32())]))),
            pa.field("d", pa.map_(pa.string(), pa.float64())),
        ]
    )


def test_columns_are_spelled_as_they_were_read() -> None:
    text = "`a b` DECIMAL(5,2), c ARRAY<STRUCT<`d.e`: INT, f: MAP<STRING, DATE>>>, `g``h` TIMESTAMP"
    fields = parse_schema(text)
    assert parse_schema(spelled(fields)) == fields
