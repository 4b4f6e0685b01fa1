"""Texts of CSV cells and JSON scalars into values, one at a time, by the rules of Spark's readers:
what `Integer.parseInt`, `BigDecimal` and Spark's own reading of dates and times accept.

A date is given as days, a time as microseconds since 1970: both are what Arrow holds.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cache, lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

from onceflow.spark.formats.schema import Plain

INTEGERS: Final[Mapping[str, int]] = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_INTEGER: Final = re.compile(r"[+-]?\d+")
_MOST_DIGITS: Final = 20
"""Of an integer, but for zeros before it."""
_NUMBER: Final = r"[+-]?(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_FLOAT: Final = re.compile(_NUMBER + "[dDfF]?")
_DECIMAL: Final = re.compile(r"[+-]?(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?0*\d{1,4})?")
HUGE_DECIMAL: Final = r"(?<!\d)\d{1001}|(?<![\w.+-])[-+]?[\d.]++[eE][-+]?0*+\d{5,}(?![\w.-])"
"""Java needs minutes for such a number, and so it is none, wherever it is read."""
_LONGEST_WITH_MARKS: Final = 1000
_HUGE: Final = re.compile(HUGE_DECIMAL)
_NO_NUMBERS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("NaN", "+NaN", "-NaN"), float("nan")),
    **dict.fromkeys(("Infinity", "+Infinity"), float("inf")),
    "-Infinity": -float("inf"),
}
_SHORT: Final[Mapping[str, float]] = {"Inf": float("inf"), "-Inf": -float("inf")}
"""Only as they are, without blanks."""
_DAY: Final = r"(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
_DATE: Final = re.compile(r"\+?([0-9]{4,7})" + _DAY + r"(?:[ T].*)?)?)?", re.DOTALL)
_TIME: Final = re.compile(
    r"\+?([0-9]{4,6})"
    + _DAY
    + r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?(.*))?)?)?)?)?",
    re.DOTALL,
)
_OFFSET: Final = re.compile(
    r"([+-])(?:([0-9]{1,2})(?::([0-9]{1,2})|:([0-9]{2}):([0-9]{2}))?"
    r"|([0-9]{2})([0-9]{2})([0-9]{2})?)"
)
_OFFSET_OF: Final = re.compile(r"\A(?:UTC|GMT|UT)(?=[+-]|\Z)")
_LONGEST_ZONE: Final = 64
_MOST_OFFSET: Final = timedelta(hours=18)
_TRIMMED: Final = "".join(map(chr, range(33)))
"""What Java cuts off on both sides of floating numbers and zones."""
_BLANK: Final = _TRIMMED + "\x7f"
"""What Spark cuts off on both sides of dates and times."""
_OTHER_PLANES: Final = "\U00010000"
"""From here on a character is two in Java, and neither of them is a digit."""
_EPOCH: Final = date(1970, 1, 1).toordinal()
_START: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a local time is measured from a local time
_EXACT: Final = Context(prec=80)
_400_YEARS: Final = timedelta(days=146_097)
_MICROSECOND: Final = timedelta(microseconds=1)
_CYCLE: Final = _400_YEARS // _MICROSECOND
_FIRST: Final = (datetime(1, 1, 3) - _START) // _MICROSECOND  # noqa: DTZ001
_LAST: Final = (datetime(9999, 12, 29) - _START) // _MICROSECOND  # noqa: DTZ001
"""Between these two Python has all times, in any zone."""


class Misfit(Exception):
    """A text that is no value of its type."""


def integer(text: str, bits: int) -> int:
    """Raises `Misfit`, as all of these do."""
    if _INTEGER.fullmatch(text) is None or max(text) >= _OTHER_PLANES:
        raise Misfit
    if len(text) > _MOST_DIGITS:
        zeros, text = text[:-_MOST_DIGITS].lstrip("+"), text[-_MOST_DIGITS:]
        if zeros.startswith("-"):
            zeros, text = zeros[1:], f"-{text}"
        if any(map(unicodedata.decimal, zeros)):
            raise Misfit
    return in_range(int(text), bits)


def in_range(number: int, bits: int) -> int:
    """A number that so many bits can hold."""
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise Misfit
    return number


def floating(text: str, name: str) -> float:
    if text in _SHORT:
        return _SHORT[text]
    text = text.strip(_TRIMMED)
    if text in _NO_NUMBERS:
        return _NO_NUMBERS[text]
    if _FLOAT.fullmatch(text) is None:
        raise Misfit
    return number(text.rstrip("dDfF"), name)


def number(text: str, name: str) -> float:
    """A FLOAT is rounded once, from the text."""
    if name == "double":
        return float(text)
    import numpy as np
    import pyarrow as pa

    try:
        return float(pa.scalar(text.lstrip("+")).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:
        with np.errstate(over="ignore"):
            return float(np.float32(float(text)))


def decimal(text: str, digits: int, scale: int) -> Decimal:
    """Rounded half up to its scale; commas are marks between thousands."""
    if "," in text:
        if len(text) > _LONGEST_WITH_MARKS or "e" in text.lower():
            raise Misfit
        text = text.replace(",", "")
    if _DECIMAL.fullmatch(text) is None or max(text) >= _OTHER_PLANES or _HUGE.search(text):
        raise Misfit
    found = Decimal(text)
    if found and found.adjusted() >= digits - scale:
        raise Misfit
    if found.adjusted() < -scale - 1:
        return Decimal(0).scaleb(-scale)
    rounded = found.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    if rounded and rounded.adjusted() >= digits - scale:
        raise Misfit
    return rounded or Decimal(0).scaleb(-scale)


def boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false") or not text.isascii():
        raise Misfit
    return lowered == "true"


def days(text: str) -> int:
    """A date; what follows a blank or a T does not count."""
    found = _DATE.fullmatch(text.strip(_BLANK))
    if found is None:
        raise Misfit
    day, before = _day(found)
    return day.toordinal() - _EPOCH - before.days


def _day(found: re.Match[str]) -> tuple[date, timedelta]:
    """A day, and how long before it the one that is meant is: Python has no year 0, but the
    calendar is the same every 400 years."""
    year, month, day = (int(each or 1) for each in found.groups()[:3])
    try:
        return date(year or 400, month, day), timedelta() if year else _400_YEARS
    except ValueError:
        raise Misfit from None


def microseconds(text: str, zone: str | None) -> int:
    """A time; one that names no zone is in `zone`. Where that is None, none may be named."""
    found = _TIME.fullmatch(text.strip(_BLANK))
    if found is None:
        raise Misfit
    hour, minute, second = (int(each or 0) for each in found.groups()[3:6])
    day, before = _day(found)
    if hour > 23 or minute > 59 or second > 59:
        raise Misfit
    fraction = int((found[7] or "")[:6].ljust(6, "0"))
    local = datetime(day.year, day.month, day.day, hour, minute, second, fraction)  # noqa: DTZ001
    named = (found[8] or "").strip(_TRIMMED)
    if zone is None:
        if found[8]:
            raise Misfit
        return (local - _START - before) // _MICROSECOND
    if len(named) > _LONGEST_ZONE:
        raise Misfit  # before a cache keeps it
    where = zone_of(named or zone)
    # Not by subtraction of aware times: that would leave offsets out where both have one zone.
    offset = local.replace(tzinfo=where).utcoffset() or timedelta()
    return (local - _START - before - offset) // _MICROSECOND


@lru_cache(maxsize=256)
def zone_of(text: str) -> tzinfo:
    """By its name or its distance from UTC; raises `Misfit`."""
    if text == "Z":
        return UTC
    rest = _OFFSET_OF.sub("", text, count=1)
    if not rest:
        return UTC
    found = _OFFSET.fullmatch(rest)
    if found is None:
        return _region(text)
    numbers = [int(each) for each in found.groups()[1:] if each is not None]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    away = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if away > _MOST_OFFSET or minutes > 59 or seconds > 59:
        raise Misfit
    return timezone(away if found[1] == "+" else -away)


def _region(text: str) -> tzinfo:
    if text not in _regions():
        raise Misfit
    return ZoneInfo(text)


@cache
def _regions() -> frozenset[str]:
    """Names of zones, spelled as they are; not the files beside them that mean something else on
    each machine, or nothing."""
    return frozenset(available_timezones()) - {"localtime", "posixrules", "Factory"}


@lru_cache(maxsize=1 << 14)
def offset_of_hour(zone: str, hour: int) -> int | None:
    """By how many microseconds a zone is ahead of UTC all through an hour of its clocks, which is
    counted since 1970 there; None when that changes, or is not known."""
    where = zone_of(zone)
    try:
        first = _START + timedelta(hours=hour)
        last = first + timedelta(hours=1) - _MICROSECOND
    except OverflowError:
        return None
    offset, other = (each.replace(tzinfo=where).utcoffset() for each in (first, last))
    return None if offset is None or offset != other else offset // _MICROSECOND


@lru_cache(maxsize=1 << 14)
def offset_of_moment(zone: str, moment: int) -> int:
    """By how many microseconds a zone is ahead of UTC at a moment, in microseconds since 1970."""
    later = max(0, -((_LAST - moment) // _CYCLE))
    known = max(moment - later * _CYCLE, _FIRST)
    local = (_START + timedelta(microseconds=known)).replace(tzinfo=UTC).astimezone(zone_of(zone))
    return (local.utcoffset() or timedelta()) // _MICROSECOND


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "boolean": boolean,
    "date": days,
    "binary": lambda text: text.encode(),
}


def reader_of(kind: Plain, zone: str) -> Callable[[str], Any]:
    """What reads the text of a cell of CSV."""
    match kind:
        case Plain("decimal", (digits, scale)):
            return lambda text: decimal(text, digits, scale)
        case Plain(name) if name in INTEGERS:
            return lambda text: integer(text, INTEGERS[name])
        case Plain("float" | "double" as name):
            return lambda text: floating(text, name)
        case Plain("timestamp"):
            return lambda text: microseconds(text, zone)
        case Plain("timestamp_ntz"):
            return lambda text: microseconds(text, None)
        case Plain(name):
            return _READERS.get(name, str)
