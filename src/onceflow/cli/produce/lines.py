"""Lines of input as records: plain text with an optional key, or JSON as `consume` writes it.

Lines are handed over as they come: a person's line at once, a file's in large chunks.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, NamedTuple

from onceflow.cli.common import bytes_from_json
from onceflow.errors import OnceflowError

READ_BYTES: Final = 1 << 20
_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_LARGEST_TIMESTAMP: Final = 2**63 - 1

Headers = tuple[tuple[str, bytes | None], ...]


class NewRecord(NamedTuple):
    """A record to be sent; without a timestamp it gets the time of sending."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


ParseLine = Callable[[bytes], NewRecord]


class InputMalformed(OnceflowError):
    """A line of the input is no record; nothing behind it was sent."""


class InputUnreadable(OnceflowError):
    """The system gives no more of the input; what had come before was sent."""


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """What each read brings, cut into lines; line ends are taken off."""
    rest = b""
    while chunk := await _read(descriptor):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


async def _read(descriptor: int) -> bytes:
    """Waits without a thread, which nobody could interrupt."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:  # a file on a disk: it never keeps anybody waiting
        await asyncio.sleep(0)
    else:
        try:
            await readable.wait()
        finally:
            loop.remove_reader(descriptor)
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError as error:
        raise InputUnreadable(f"cannot read the input: {error.strerror}") from error


def text_parser(key_separator: str | None, headers: Headers) -> ParseLine:
    """A line is a value; with a separator, what stands before the first one is the key."""
    separator = os.fsencode(key_separator) if key_separator else None

    def parse(line: bytes) -> NewRecord:
        if separator is None:
            return NewRecord(line, headers=headers)
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"it does not contain the key separator {key_separator!r}")
        return NewRecord(value, key, headers)

    return parse


def json_parser(headers: Headers) -> ParseLine:
    """A line is an object with a value and, optionally, key, headers and timestamp.

    Topic, partition and offset may be there, as `consume --json` writes them, and are not used.
    """

    def parse(line: bytes) -> NewRecord:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"it is not JSON ({error})") from None
        except RecursionError:
            raise ValueError("its JSON is nested too deeply to be a record") from None
        if not isinstance(record, dict):
            raise ValueError('it is not a JSON object such as {"key": "a", "value": "b"}')
        unknown = [name for name in record if name not in _FIELDS]
        if unknown or "value" not in record:
            problem = f"unknown field {unknown[0]!r}" if unknown else "there is no 'value'"
            raise ValueError(f"{problem}; the fields are {', '.join(_FIELDS)}")
        return NewRecord(
            value=bytes_from_json(record["value"], "value"),
            key=bytes_from_json(record.get("key"), "key"),
            headers=(*_headers(record.get("headers")), *headers),
            timestamp_ms=_timestamp(record.get("timestamp")),
        )

    return parse


def _headers(value: Any) -> Iterator[tuple[str, bytes | None]]:
    if value is None:
        return
    if not isinstance(value, list):
        raise ValueError('headers must be a list of {"key": "...", "value": "..."}')
    for each in value:
        if not isinstance(each, dict) or not isinstance(each.get("key"), str):
            raise ValueError('a header must be {"key": "...", "value": "..."}')
        yield each["key"], bytes_from_json(each.get("value"), "the value of a header")


def _timestamp(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is int and 0 <= value <= _LARGEST_TIMESTAMP:
        return value
    raise ValueError("timestamp must be a whole number of milliseconds since 1970")


def parse_lines(
    lines: list[bytes], parse: ParseLine, first_number: int
) -> tuple[list[NewRecord], InputMalformed | None]:
    """The records up to the first line that is none, and what is wrong with that."""
    records: list[NewRecord] = []
    for number, line in enumerate(lines, first_number):
        try:
            records.append(parse(line))
        except ValueError as error:
            return records, no_record(number, error)
    return records, None


def no_record(line: int, reason: Exception) -> InputMalformed:
    """For a line that cannot be sent as it is."""
    return InputMalformed(f"line {line} of the input cannot be sent: {reason}")
