"""Schemas as Spark writes them (`"id BIGINT, tags ARRAY<STRING>"`), understood without a JVM: wrong
ones are reported before Spark is started, and Arrow pipelines parse by them.

Types are those that JSON and CSV can hold. Names may stand in backquotes, `:` between a name and
its type, `NOT NULL` and `COMMENT '...'` behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from onceflow.errors import OnceflowError
from onceflow.settings import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<name>[A-Za-z0-9_]+)|`(?P<quoted>(?:[^`]|``)+)`|'(?P<text>(?:[^'\\]|\\.)*)'"
    r"|(?P<mark>[<>(),:]))"
)
_NAMES: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "byte": "tinyint",
    "tinyint": "tinyint",
    "short": "smallint",
    "smallint": "smallint",
    "int": "int",
    "integer": "int",
    "long": "bigint",
    "bigint": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "string": "string",
    "char": "string",
    "varchar": "string",
    "binary": "binary",
    "decimal": "decimal",
    "dec": "decimal",
    "numeric": "decimal",
}
_NESTED: Final = ("array", "map", "struct")
_MOST_DIGITS: Final = 38


class SchemaMalformed(OnceflowError):
    """A text that is no schema; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Plain:
    """One value, by Spark's name of its type; numbers are those of a decimal."""

    name: str
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ListOf:
    word: ClassVar[str] = "ARRAY"
    element: DataType


@dataclass(frozen=True, slots=True)
class MapOf:
    word: ClassVar[str] = "MAP"
    key: DataType
    value: DataType


@dataclass(frozen=True, slots=True)
class StructOf:
    word: ClassVar[str] = "STRUCT"
    fields: tuple[Field, ...]


DataType: TypeAlias = Plain | ListOf | MapOf | StructOf


@dataclass(frozen=True, slots=True)
class Field:
    """A column."""

    name: str
    type: DataType
    nullable: bool = True


def parse_schema(text: str) -> tuple[Field, ...]:
    """The columns; raises `SchemaMalformed`."""
    reading = _Reading(text)
    fields = reading.fields("")
    names = [each.name.lower() for each in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SchemaMalformed(f"the column {twice!r} is there twice")
    return fields


def has_other_keys(kind: DataType) -> bool:
    """Whether there is a map in it whose keys are no text."""
    match kind:
        case MapOf(key, value):
            return key != Plain("string") or has_other_keys(value)
        case ListOf(element):
            return has_other_keys(element)
        case StructOf(fields):
            return any(has_other_keys(each.type) for each in fields)
        case _:
            return False


class _Reading:
    """A recursive reading of tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next, self._at = next(self._tokens)

    def _take(self) -> str:
        taken = self._next
        self._next, self._at = next(self._tokens)
        return taken

    def _wrong(self, expected: str) -> SchemaMalformed:
        found = f"{self._next!r} stands" if self._next else "it ends"
        return SchemaMalformed(f"{expected} is expected where {found} (position {self._at + 1})")

    def _expect(self, mark: str) -> None:
        if self._next != mark:
            raise self._wrong(repr(mark))
        self._take()

    def fields(self, end: str) -> tuple[Field, ...]:
        """Columns up to a mark."""
        found = [self._field()]
        while self._next == ",":
            self._take()
            found.append(self._field())
        if self._next != end:
            raise self._wrong(f"',' or {end!r}" if end else "','")
        return tuple(found)

    def _field(self) -> Field:
        if self._next in ("", *"<>(),:"):
            raise self._wrong("the name of a column")
        name = self._take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        if self._next == ":":
            self._take()
        kind = self._type(name)
        nullable = True
        if self._next.lower() == "not":
            self._take()
            if self._next.lower() != "null":
                raise self._wrong("NULL")
            self._take()
            nullable = False
        if self._next.lower() == "comment":
            self._take()
            if not self._next.startswith("'"):
                raise self._wrong("a text in single quotes")
            self._take()
        return Field(name, kind, nullable)

    def _type(self, column: str) -> DataType:
        if not self._next or self._next in "<>(),:":
            raise self._wrong(f"the type of {column!r}")
        at, written = self._at, self._take()
        name = written.lower()
        if name in _NESTED:
            self._expect("<")
            nested = self._nested(name, column)
            self._expect(">")
            return nested
        if name not in _NAMES:
            guess = did_you_mean(name, [each.upper() for each in (*_NAMES, *_NESTED)])
            raise SchemaMalformed(
                f"{column!r} has the type {written!r} (position {at + 1}), which is none{guess}"
            )
        return _plain(_NAMES[name], self._numbers(), column)

    def _nested(self, name: str, column: str) -> DataType:
        if name == "struct":
            return StructOf(self.fields(">"))
        first = self._type(column)
        if name == "array":
            return ListOf(first)
        self._expect(",")
        return MapOf(first, self._type(column))

    def _numbers(self) -> tuple[int, ...]:
        if self._next != "(":
            return ()
        self._take()
        found = [self._number()]
        while self._next == ",":
            self._take()
            found.append(self._number())
        self._expect(")")
        return tuple(found)

    def _number(self) -> int:
        if not self._next.isdecimal():
            raise self._wrong("a number")
        return int(self._take())


def _plain(name: str, numbers: tuple[int, ...], column: str) -> Plain:
    if name == "string":
        return Plain(name)
    if name != "decimal":
        if numbers:
            raise SchemaMalformed(f"{column!r}: {name.upper()} takes no numbers")
        return Plain(name)
    digits, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
    if len(numbers) > 2 or not 0 < digits <= _MOST_DIGITS or scale > digits:
        raise SchemaMalformed(
            f"{column!r}: DECIMAL takes up to {_MOST_DIGITS} digits, and no more of them behind "
            "the point"
        )
    return Plain(name, (digits, scale))


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Each token and where it stands; empty ones at the end."""
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise SchemaMalformed(f"{text[at:end].lstrip()[:1]!r} has no place in a schema")
        yield found[0].strip(), found.end() - len(found[0].strip())
        at = found.end()
    while True:
        yield "", end


def spelled(fields: tuple[Field, ...]) -> str:
    """The same columns as text; `NOT NULL` is left out."""
    return ", ".join(f"{_quoted(each.name)} {_spelled(each.type)}" for each in fields)


def _spelled(kind: DataType) -> str:
    match kind:
        case ListOf(element):
            return f"ARRAY<{_spelled(element)}>"
        case MapOf(key, value):
            return f"MAP<{_spelled(key)}, {_spelled(value)}>"
        case StructOf(fields):
            inside = (f"{_quoted(each.name)}: {_spelled(each.type)}" for each in fields)
            return f"STRUCT<{', '.join(inside)}>"
        case Plain(name, numbers):
            return name + (f"({', '.join(map(str, numbers))})" if numbers else "")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# --- the same for Arrow -------------------------------------------------------------------------


def arrow_schema(fields: tuple[Field, ...]) -> pa.Schema:
    """The types that Spark has for them in Arrow."""
    import pyarrow as pa

    return pa.schema([_arrow_field(each) for each in fields])


def nullable(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The same columns, in which everything may be null."""
    return tuple(Field(each.name, _nullable(each.type)) for each in fields)


def _nullable(kind: DataType) -> DataType:
    match kind:
        case ListOf(element):
            return ListOf(_nullable(element))
        case MapOf(key, value):
            return MapOf(_nullable(key), _nullable(value))
        case StructOf(fields):
            return StructOf(nullable(fields))
        case Plain():
            return kind


def _arrow_field(field: Field) -> pa.Field[Any]:
    import pyarrow as pa

    return pa.field(field.name, arrow_type(field.type), nullable=field.nullable)


def arrow_type(kind: DataType) -> pa.DataType:
    """That of a column."""
    import pyarrow as pa

    match kind:
        case ListOf(element):
            return pa.list_(arrow_type(element))
        case MapOf(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case StructOf(fields):
            return pa.struct([_arrow_field(each) for each in fields])
        case Plain("decimal", (digits, scale)):
            return pa.decimal128(digits, scale)
        case Plain(name):
            return _plain_types()[name]()


def _plain_types() -> Mapping[str, Callable[[], pa.DataType]]:
    import pyarrow as pa

    return {
        "boolean": pa.bool_,
        "tinyint": pa.int8,
        "smallint": pa.int16,
        "int": pa.int32,
        "bigint": pa.int64,
        "float": pa.float32,
        "double": pa.float64,
        "date": pa.date32,
        "timestamp": lambda: pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": lambda: pa.timestamp("us"),
        "string": pa.string,
        "binary": pa.binary,
    }
