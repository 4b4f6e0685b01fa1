"""The value of one record into a row, by the rules of Spark's readers of JSON and CSV, but for what
those would make wrong rows of: where Spark drops what follows the first JSON object, keeps half of
a quoted cell with its quotes, or replaces bytes that are no text, there is no row.

This is slow and exact; `formats_arrow` reads ordinary records many at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onceflow.spark.formats_schema import DataType, Field, ListOf, Plain, StructOf
from onceflow.spark.formats_text import (
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
    return f"the value does not fit to the schema of the {form}"


class Refused(Exception):
    """A record that is no row; the text says why."""


def text_of(value: bytes | None) -> str:
    """Raises `Refused`."""
    if value is None:
        raise Refused(IS_NULL)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Refused(NOT_UTF8) from None


def complete(fields: tuple[Field, ...], row: Row) -> Row:
    """The row, if nothing is null that must not be; raises `Refused`."""
    for field, value in zip(fields, row, strict=True):
        if value is None and not field.nullable:
            raise Refused(f"{field.name} is null")
    return row


# --- CSV ----------------------------------------------------------------------------------------


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
        do not count; and, in any other, a quote is a character as all others. Nothing in it goes
        back, so that it needs no stack, whoever runs it, and however long a cell is."""
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
        """Raises `Refused`."""
        cells = list(self._cells(text_of(value)))
        if len(cells) != len(self._fields):
            raise Refused(misfit("CSV"))
        try:
            found = tuple(
                None if text is None else read(text)
                for text, read in zip(cells, self._readers, strict=True)
            )
        except Misfit:
            raise Refused(misfit("CSV")) from None
        return complete(self._fields, found)

    def _cells(self, text: str) -> Iterator[str | None]:
        at = 0
        while True:
            found = self._cell.match(text, at)
            if found is None:
                raise Refused(misfit("CSV"))
            yield self._content(found[0])
            at = found.end()
            if at == len(text):
                return
            if text[at] != self._marks.sep:
                raise Refused(misfit("CSV"))
            at += 1

    def _content(self, cell: str) -> str | None:
        quote, escape = self._marks.quote, self._marks.escape
        if not cell.startswith(quote):
            return cell or None
        inside = cell[1 : cell.rindex(quote)]
        if escape not in inside:
            return inside
        either = re.escape(escape) + f"([{re.escape(escape)}{re.escape(quote)}])"
        return re.sub(either, lambda found: found[1], inside)


def _cell_reader(kind: DataType, zone: str) -> Callable[[str], Any]:
    if not isinstance(kind, Plain):
        raise Misfit
    return reader_of(kind, zone)


# --- JSON ---------------------------------------------------------------------------------------

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_STRINGS: Final = {
    quote: re.compile(
        rf"{quote}([^{quote}\\\x00-\x1f]*+(?:\\[\s\S][^{quote}\\\x00-\x1f]*+)*+){quote}"
    )
    for quote in "\"'"
}
_ESCAPED: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([\s\S]))")
_ESCAPES: Final[Mapping[str, str]] = {
    **{each: each for each in "\"'\\/"},
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_NO_NUMBERS: Final[Mapping[str, float]] = {
    "NaN": float("nan"),
    **dict.fromkeys(("Infinity", "+Infinity", "+INF"), float("inf")),
    **dict.fromkeys(("-Infinity", "-INF"), -float("inf")),
}
_WORD: Final = re.compile(r"true|false|null|NaN|[+-]?Infinity|[+-]INF")
_DEEPEST: Final = 1000
_LONGEST_NUMBER: Final = 1000
"""Both as in the parser that Spark uses."""
_CLOSING: Final = {"{": "}", "[": "]"}


class NotJson(Exception):
    """The text breaks a rule of JSON."""


@dataclass(frozen=True, slots=True)
class Word:
    """A number, or a word without quotes."""

    text: str
    is_integer: bool = False
    is_number: bool = False


class JsonRecord:
    """Reads values of JSON, each of them one object. Of a name that is there twice the last counts;
    names that the schema does not have are left out."""

    def __init__(self, fields: tuple[Field, ...], zone: str) -> None:
        self._fields = fields
        self._zone = zone

    def row(self, value: bytes | None) -> Row:
        """Raises `Refused`."""
        text = text_of(value)
        try:
            at = _blank(text, 0)
            if _blank(text, skip(text, at)) != len(text) or text[at] != "{":
                raise NotJson
            found = self._object(text, at, self._fields)
        except NotJson:
            raise Refused(NOT_JSON) from None
        except Misfit:
            raise Refused(misfit("JSON")) from None
        return complete(self._fields, tuple(found[each.name] for each in self._fields))

    def _object(self, text: str, at: int, fields: tuple[Field, ...]) -> dict[str, Any]:
        types = {each.name: each.type for each in fields}
        found: dict[str, Any] = dict.fromkeys(types)
        for name, begins in _members(text, at):
            if name in types:
                found[name] = self._value(text, begins, types[name])
        return found

    def _value(self, text: str, at: int, kind: DataType) -> Any:
        if text.startswith("null", at):
            return None
        match kind:
            case StructOf(fields) if text[at] == "{":
                return self._object(text, at, fields)
            case ListOf(element) if text[at] == "[":
                return [self._value(text, each, element) for each in _elements(text, at)]
            case Plain() if text[at] not in "{[":
                return self._scalar(scalar(text, at)[0], kind)
        raise Misfit

    def _scalar(self, token: str | Word, kind: Plain) -> Any:
        if isinstance(token, str):
            return self._of_text(_PAIR.sub(_joined, token), kind)
        return _of_word(token, kind)

    def _of_text(self, text: str, kind: Plain) -> Any:
        match kind:
            case Plain("string"):
                if not _is_text(text):
                    raise Misfit
                return text
            case Plain("decimal", (digits, scale)):
                return decimal(text, digits, scale)
            case Plain("date"):
                return days(text)
            case Plain("timestamp"):
                return microseconds(text, self._zone)
            case Plain("timestamp_ntz"):
                return microseconds(text, None)
            case Plain("float" | "double") if text in _NO_NUMBERS:
                return _NO_NUMBERS[text]
        raise Misfit


def _of_word(token: Word, kind: Plain) -> Any:
    text = token.text
    match kind:
        case Plain("boolean") if text in ("true", "false"):
            return text == "true"
        case Plain("string") if text in ("true", "false"):
            return text
        case Plain("string") if token.is_integer:
            return str(int(text))
        case Plain("float" | "double" as name):
            if token.is_number:
                return number(str(int(text)) if token.is_integer else text, name)
            if text in _NO_NUMBERS:
                return _NO_NUMBERS[text]
        case Plain("decimal", (digits, scale)) if token.is_number:
            return decimal(text, digits, scale)
        case Plain("timestamp") if token.is_integer:
            return in_range(int(text) * 1_000_000, 64)
        case Plain(name) if name in INTEGERS and token.is_integer:
            return in_range(int(text), INTEGERS[name])
    raise Misfit


def _is_text(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text) if not text.isascii() else True


def _joined(found: re.Match[str]) -> str:
    return found[0].encode("utf-16", "surrogatepass").decode("utf-16")


# --- its syntax ---------------------------------------------------------------------------------


def _blank(text: str, at: int) -> int:
    """Where the blanks end that begin here."""
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def scalar(text: str, at: int) -> tuple[str | Word, int]:
    """A text, with halves of pairs as they are written, or a word, and where it ends; raises
    `NotJson`."""
    mark = text[at : at + 1]
    if mark in _STRINGS:
        found = _STRINGS[mark].match(text, at)
        if found is None:
            raise NotJson
        return _ESCAPED.sub(_unescaped, found[1]), found.end()
    found = _WORD.match(text, at)
    if found is not None:
        return Word(found[0]), found.end()
    found = _NUMBER.match(text, at)
    if found is None or found.end() - at > _LONGEST_NUMBER:
        raise NotJson
    return Word(found[0], found[1] is None and found[2] is None, is_number=True), found.end()


def _unescaped(found: re.Match[str]) -> str:
    if found[1] is not None:
        return chr(int(found[1], 16))
    if found[2] not in _ESCAPES:
        raise NotJson
    return _ESCAPES[found[2]]


def _name(text: str, at: int) -> tuple[str, int]:
    """The name of a member, and where its value begins."""
    if text[at : at + 1] not in ('"', "'"):
        raise NotJson
    name, at = scalar(text, at)
    at = _blank(text, at)
    if text[at : at + 1] != ":" or not isinstance(name, str):
        raise NotJson
    return name, _blank(text, at + 1)


def skip(text: str, at: int) -> int:
    """Where the value ends that begins here; raises `NotJson`. It needs no stack of its own: a
    value may be nested as deep as it likes."""
    open_marks: list[str] = []
    while True:
        mark = text[at : at + 1]
        if mark in _CLOSING:
            open_marks.append(_CLOSING[mark])
            if len(open_marks) > _DEEPEST:
                raise NotJson
            at = _blank(text, at + 1)
            if text[at : at + 1] != open_marks[-1]:
                at = _name(text, at)[1] if mark == "{" else at
                continue
        else:
            at = scalar(text, at)[1]
        at, is_done = _closed(text, at, open_marks)
        if is_done:
            return at


def _closed(text: str, at: int, open_marks: list[str]) -> tuple[int, bool]:
    """Behind a value, or before the mark that closes an empty one: where the next one begins, or
    the end of them all."""
    while open_marks:
        at = _blank(text, at)
        mark = text[at : at + 1]
        if mark == ",":
            at = _blank(text, at + 1)
            return (_name(text, at)[1] if open_marks[-1] == "}" else at), False
        if mark != open_marks[-1]:
            raise NotJson
        open_marks.pop()
        at += 1
    return at, True


def _members(text: str, at: int) -> Iterator[tuple[str, int]]:
    """Names of an object that begins here, and where their values do."""
    at = _blank(text, at + 1)
    while text[at] != "}":
        name, at = _name(text, at)
        yield _PAIR.sub(_joined, name), at
        at = _next(text, at)


def _elements(text: str, at: int) -> Iterator[int]:
    at = _blank(text, at + 1)
    while text[at] != "]":
        yield at
        at = _next(text, at)


def _next(text: str, at: int) -> int:
    at = _blank(text, skip(text, at))
    return _blank(text, at + 1) if text[at] == "," else at
