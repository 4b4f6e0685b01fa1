"""The lines of a TOML document's keys, against documents that are laid out in all ways."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from hypothesis import given, strategies as st

from onceflow.spark.errors.pipeline import KeyPath
from onceflow.spark.pipeline.file import key_lines

DOCUMENT = r"""# a comment with [brackets] and key = "value"
title = "one # not a comment" # a comment
[pipeline]
name = 'it'

  [ source . orders ]
topics = [
  "a", # the first
  'b',
]
watermark = { column = "time", delay = "10 minutes" }
sql = QQQ
SELECT "a = b" -- [not.a.table]
x = 1
\\"QQQ
after.the."long.one" = 3

[[sink]]
topic = "x"
[[sink]]
topic = "y"
[sink.headers]
'quoted key' = 1979-05-27T07:32:00Z
""".replace("QQQ", '"' * 3)


def test_every_layout() -> None:
    tomllib.loads(DOCUMENT)
    found = key_lines(DOCUMENT)
    lines = DOCUMENT.splitlines()

    def line_of(start: str, which: int = 0) -> int:
        return [number for number, line in enumerate(lines, 1) if line.startswith(start)][which]

    assert found == {
        ("title",): line_of("title"),
        ("pipeline",): line_of("[pipeline"),
        ("pipeline", "name"): line_of("name"),
        ("source",): line_of("  [ source"),
        ("source", "orders"): line_of("  [ source"),
        ("source", "orders", "topics"): line_of("topics"),
        ("source", "orders", "topics", "0"): line_of('  "a"'),
        ("source", "orders", "topics", "1"): line_of("  'b'"),
        ("source", "orders", "watermark"): line_of("watermark"),
        ("source", "orders", "watermark", "column"): line_of("watermark"),
        ("source", "orders", "watermark", "delay"): line_of("watermark"),
        ("source", "orders", "sql"): line_of("sql"),
        ("source", "orders", "after"): line_of("after"),
        ("source", "orders", "after", "the"): line_of("after"),
        ("source", "orders", "after", "the", "long.one"): line_of("after"),
        ("sink",): line_of("[[sink"),
        ("sink", "0"): line_of("[[sink"),
        ("sink", "0", "topic"): line_of("topic =", 0),
        ("sink", "1"): line_of("[[sink", 1),
        ("sink", "1", "topic"): line_of("topic =", 1),
        ("sink", "1", "headers"): line_of("[sink.headers"),
        ("sink", "1", "headers", "quoted key"): line_of("'quoted"),
    }


_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)
_VALUES = st.recursive(
    st.one_of(st.integers(-9, 9), st.booleans(), _NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=8,
)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{_quoted(key)} = {_toml(each)}" for key, each in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(_toml, value)) + "\n]"
    return _quoted(value) if isinstance(value, str) else str(value).lower()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _paths(value: Any, path: KeyPath) -> set[KeyPath]:
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = ((str(number), each) for number, each in enumerate(value))
    return {path}.union(*(_paths(each, (*path, name)) for name, each in inner))


@given(st.dictionaries(_NAMES, st.dictionaries(_NAMES, _VALUES, max_size=4), max_size=4))
def test_all_keys_are_found_and_no_others(tables: dict[str, dict[str, Any]]) -> None:
    text = ""
    lines: dict[KeyPath, int] = {}
    for table, keys in tables.items():
        lines[(table,)] = text.count("\n") + 1
        text += f"[{_quoted(table)}]\n"
        for key, value in keys.items():
            lines[(table, key)] = text.count("\n") + 1
            text += f"{_quoted(key)} = {_toml(value)} # [x] = 1\n"
    assert tomllib.loads(text) == tables
    found = key_lines(text)
    assert set(found) == _paths(tables, ()) - {()}
    assert {path: found[path] for path in lines} == lines
