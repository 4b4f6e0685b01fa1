"""The value of one record into a row, by the rules of Spark's readers of JSON and CSV, but for what
those would make wrong rows of: where Spark drops what follows the first JSON object, keeps half of
a quoted cell with its quotes, or replaces bytes that are no text, there is no row.

This is slow and exact; `arrow_parse` reads ordinary records many at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, Final, TypeAlias

from onceflow.spark.formats.schema import DataType, Field, ListOf, Plain, StructOf
from onceflow.spark.formats.text import (
    INTEGERS,
    Misfit,
    days,
    decimal,
    in_range,
    microseconds,
    number,
    reader_of,
)

IS_NULL: Final = "the value is null"
NOT_UTF8: Final = "the value is not text in UTF-8"
NOT_JSON: Final = "the value is not JSON"
Row = tuple[Any, ...]


def misfit(form: str) -> str:
    return f"the value does not fit the schema of the {form}"


class RecordRefused(Exception):
    """A record that is no row; the text says why."""


def text_of(value: bytes | None) -> str:
    """Raises `RecordRefused`."""
    if value is None:
        raise RecordRefused(IS_NULL)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RecordRefused(NOT_UTF8) from None


def complete(fields: tuple[Field, ...], row: Row) -> Row:
    """The row, if nothing is null that must not be; raises `RecordRefused`."""
    for field, value in zip(fields, row, strict=True):
        if value is None and not field.nullable:
            raise RecordRefused(f"{field.name} is null")
    return row


# --- CSV ----------------------------------------------------------------------------------------

END_OF_INPUT: Final = "\uffff"
"""No character of any text, and Spark's parser takes it for the end of its input: what follows it
would become a part of the next record. So a value of CSV that has it is none."""


@dataclass(frozen=True)
class Marks:
    """The characters that CSV is made of."""

    sep: str = ","
    quote: str = '"'
    escape: str = "\\"

    @property
    def all(self) -> tuple[str, str, str]:
        return self.sep, self.quote, self.escape

    @property
    def cell(self) -> str:
        """An expression for a cell: one that begins with a quote ends with one, blanks behind it
        do not count; and, in any other, a quote is a character as all others. Nothing in it
        backtracks, so it needs no stack in any engine, however long a cell is."""
        sep, quote, escape = map(re.escape, (self.sep, self.quote, self.escape))
        if self.quote == self.escape:
            inside = f"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+"
        else:
            inside = f"[^{quote}{escape}]*+(?:{escape}[\\s\\S][^{quote}{escape}]*+)*+"
        blank = "".join(re.escape(each) for each in " \t\r\n" if each != self.sep)
        return f"(?:{quote}{inside}{quote}[{blank}]*+|(?!{quote})[^{sep}]*+)"

    @property
    def line(self) -> str:
        """An expression for all cells of a value."""
        return f"\\A{self.cell}(?:{re.escape(self.sep)}{self.cell})*+\\z"


class CsvRecord:
    """Reads values of CSV. A cell without anything is null, `""` is an empty text."""

    def __init__(self, fields: tuple[Field, ...], marks: Marks, zone: str) -> None:
        self._fields = fields
        self._marks = marks
        self._cell = re.compile(marks.cell)
        self._readers = [_cell_reader(each.type, zone) for each in fields]

    def row(self, value: bytes | None) -> Row:
        """Raises `RecordRefused`."""
        text = text_of(value)
        if END_OF_INPUT in text:
            raise RecordRefused(misfit("CSV"))
        cells = list(islice(self._cells(text), len(self._fields) + 1))
        if len(cells) != len(self._fields):
            raise RecordRefused(misfit("CSV"))
        try:
            found = tuple(
                None if text is None else read(text)
                for text, read in zip(cells, self._readers, strict=True)
            )
        except Misfit:
            raise RecordRefused(misfit("CSV")) from None
        return complete(self._fields, found)

    def _cells(self, text: str) -> Iterator[str | None]:
        at = 0
        while True:
            found = self._cell.match(text, at)
            if found is None:
                raise RecordRefused(misfit("CSV"))
            yield self._content(found[0])
            at = found.end()
            if at == len(text):
                return
            if text[at] != self._marks.sep:
                raise RecordRefused(misfit("CSV"))
            at += 1

    def _content(self, cell: str) -> str | None:
        quote, escape = self._marks.quote, self._marks.escape
        if not cell.startswith(quote):
            return cell or None
        inside = cell[1 : cell.rindex(quote)]
        if escape not in inside:
            return inside
        either = re.escape(escape) + f"([{re.escape(escape)}{re.escape(quote)}])"
        return re.sub(either, r"\1", inside)


def _cell_reader(kind: DataType, zone: str) -> Callable[[str], Any]:
    if not isinstance(kind, Plain):
        raise Misfit
    return reader_of(kind, zone)


# --- JSON ---------------------------------------------------------------------------------------

DEEPEST: Final = 500
"""Lists and objects inside of each other: each takes a part of the reader's stack."""
LONGEST_NUMBER: Final = 1000
"""As in the parser that Spark uses."""
SAFE_SIZE: Final = min(LONGEST_NUMBER, 2 * DEEPEST)
"""What is no longer than this keeps both limits: whatever is opened is closed, too."""
_NO_NUMBERS: Final[Mapping[str, float]] = {
    "NaN": float("nan"),
    **dict.fromkeys(("Infinity", "+Infinity", "+INF"), float("inf")),
    **dict.fromkeys(("-Infinity", "-INF"), -float("inf")),
}
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"')
_STRING_OR_REST: Final = re.compile(_STRING.pattern[:-1] + r'(?:"|\\?\Z)')
"""Also one that is not closed: else each quote in it would be looked at as the beginning of one, to
the end of the text."""
_LONG_NUMBER: Final = re.compile(rf"(?<![-+.0-9eE])[-+.0-9eE]{{{LONGEST_NUMBER + 1}}}")
_STRIDE: Final = 97
"""Prime, so that what repeats itself (`0,0,0`) does not look the same everywhere."""
_OF_LONG_NUMBER: Final = re.compile(rb"[-+.0-9eE]{%d}" % (LONGEST_NUMBER // _STRIDE))
_BRACKET: Final = re.compile(r"[\[{\]}]")
_STEPS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_OTHER: Final = re.compile(
    _STRING.pattern + r"|'[^'\\]*+(?:\\[\s\S][^'\\]*+)*+'|\"|'|\+INF\b|-INF\b|\+Infinity\b"
)
"""What the parser of Spark takes besides standard JSON stands in one of these. (Each begins with a
character, so that all between them is passed over quickly.)"""
_SIGNS: Final = re.compile(r"[-+.\w]")
_INSIDE: Final = re.compile(r'\\[\s\S]|"')


class NotJson(Exception):
    """The text breaks a rule of JSON."""


class Whole(str):
    """A number without point and exponent, as it is written."""

    __slots__ = ()


class Fraction(str):
    """Any other number, as it is written."""

    __slots__ = ()


class NoNumber(str):
    """`NaN` or an infinity, without quotes."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """An object, with names that are there twice."""


_SCANNER: Final = json.JSONDecoder(
    object_pairs_hook=Members, parse_int=Whole, parse_float=Fraction, parse_constant=NoNumber
)


class JsonRecord:
    """Reads values of JSON, each of them one object. Of a name that is there twice the last counts;
    names that the schema does not have are left out."""

    def __init__(self, fields: tuple[Field, ...], zone: str) -> None:
        self._fields = fields
        self._read = _struct_reader(fields, zone)

    def row(self, value: bytes | None) -> Row:
        """Raises `RecordRefused`."""
        text = text_of(value)
        try:
            found = self._read(object_of(text))
        except NotJson:
            raise RecordRefused(NOT_JSON) from None
        except Misfit:
            raise RecordRefused(misfit("JSON")) from None
        return complete(self._fields, tuple(found.values()))


def object_of(text: str) -> Members:
    """The one object of a value; raises `NotJson`."""
    try:
        return _standard(text)
    except NotJson:
        if "'" not in text and "INF" not in text and "+I" not in text:
            raise
    return _standard(_OTHER.sub(_as_standard, text))


def _standard(text: str) -> Members:
    check_limits(text)
    try:
        found = _SCANNER.decode(text)
    except (ValueError, RecursionError):
        raise NotJson from None
    if not isinstance(found, Members):
        raise NotJson
    return found


def check_limits(text: str) -> None:
    """Raises `NotJson` where JSON is nested too deep, or has a number that is too long; also in
    fields that nobody wants, since Spark looks there too."""
    if len(text) <= SAFE_SIZE:
        return
    bare = _STRING_OR_REST.sub("", text)
    is_suspect = may_have_long_number(bare.encode(errors="replace"))
    if is_suspect and _LONG_NUMBER.search(bare) is not None:
        raise NotJson
    if bare.count("[") + bare.count("{") > DEEPEST:
        depths = accumulate(map(_STEPS.__getitem__, _BRACKET.findall(bare)))
        if max(depths) > DEEPEST:
            raise NotJson


def may_have_long_number(data: Any) -> bool:
    """Where every 97th byte is looked at, a number that is too long is there many times in a
    row, and hardly anything else is."""
    return _OF_LONG_NUMBER.search(bytes(data[::_STRIDE])) is not None


def _as_standard(found: re.Match[str]) -> str:
    """Single quotes and `+INF` as standard JSON has them. A quote that is not closed must not get
    its end from what is written anew."""
    text = found[0]
    if text in ("'", '"'):
        raise NotJson
    if text[0] in "+-":
        if _SIGNS.match(found.string, found.start() - 1):
            raise NotJson
        return "-Infinity" if text[0] == "-" else "Infinity"
    return f'"{_INSIDE.sub(_escaped, text[1:-1])}"'


def _escaped(found: re.Match[str]) -> str:
    return {"\\'": "'", '"': '\\"'}.get(found[0], found[0])


# --- its values ---------------------------------------------------------------------------------

Reader: TypeAlias = Callable[[Any], Any]
"""Of what the scanner has found, but for null. Raises `Misfit`."""


def _struct_reader(fields: tuple[Field, ...], zone: str) -> Reader:
    readers = {each.name: _value_reader(each.type, zone) for each in fields}

    def read(found: Any) -> dict[str, Any]:
        if not isinstance(found, Members):
            raise Misfit
        values: dict[str, Any] = dict.fromkeys(readers)
        for name, value in found:
            if name in readers:
                values[name] = None if value is None else readers[name](value)
        return values

    return read


def _list_reader(element: DataType, zone: str) -> Reader:
    read = _value_reader(element, zone)

    def read_all(found: Any) -> list[Any]:
        if type(found) is not list:  # an object is one, too
            raise Misfit
        return [None if each is None else read(each) for each in found]

    return read_all


def _value_reader(kind: DataType, zone: str) -> Reader:
    match kind:
        case StructOf(fields):
            return _struct_reader(fields, zone)
        case ListOf(element):
            return _list_reader(element, zone)
        case Plain():
            return _plain_reader(kind, zone)
    raise Misfit


def _plain_reader(kind: Plain, zone: str) -> Reader:
    match kind:
        case Plain("boolean"):
            return _boolean
        case Plain("string"):
            return _string
        case Plain("float" | "double" as name):
            return lambda found: _floating(found, name)
        case Plain("decimal", (digits, scale)):
            return lambda found: decimal(_scalar(found, Whole, Fraction, str), digits, scale)
        case Plain("date"):
            return lambda found: days(_scalar(found, str))
        case Plain("timestamp"):
            return lambda found: _time(found, zone)
        case Plain("timestamp_ntz"):
            return lambda found: microseconds(_scalar(found, str), None)
        case Plain(name) if name in INTEGERS:
            bits = INTEGERS[name]
            return lambda found: in_range(int(_scalar(found, Whole)), bits)
    raise Misfit


def _scalar(found: Any, *kinds: type[str]) -> str:
    """The text, if it is of one of these kinds."""
    if type(found) not in kinds:
        raise Misfit
    text: str = found
    return text


def _boolean(found: Any) -> bool:
    if not isinstance(found, bool):
        raise Misfit
    return found


def _string(found: Any) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    text = _scalar(found, str, Whole)
    if type(found) is Whole:
        return str(int(text))
    if not text.isascii() and _HALF.search(text) is not None:
        raise Misfit
    return text


def _floating(found: Any, name: str) -> float:
    if type(found) is Whole:
        return number(found, name) + 0.0  # an integer has no sign where it is 0
    if type(found) is Fraction:
        return number(found, name)
    text = _scalar(found, str, NoNumber)
    if text not in _NO_NUMBERS:
        raise Misfit
    return _NO_NUMBERS[text]


def _time(found: Any, zone: str) -> int:
    if type(found) is Whole:
        return in_range(int(found) * 1_000_000, 64)
    return microseconds(_scalar(found, str), zone)


_HALF: Final = re.compile("[\ud800-\udfff]")
