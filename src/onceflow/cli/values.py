"""What users write and read: places in a log, settings, times, and bytes as text or JSON."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import typer


class Place(Enum):
    """How a place in a log is named."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a log; `number` is the offset, or the time in milliseconds."""

    place: Place
    number: int = 0


def parse_position(text: str) -> Position:
    """`earliest`, `latest`, an offset, or a time: ISO 8601, or `@` and milliseconds."""
    word = text.strip().lower()
    if word in (Place.EARLIEST.value, Place.LATEST.value):
        return Position(Place(word))
    if word.isascii() and word.isdigit() and int(word) < 2**63:
        return Position(Place.OFFSET, int(word))
    if word[:1] == "@" and word[1:].isascii() and word[1:].isdigit() and int(word[1:]) < 2**63:
        return Position(Place.TIMESTAMP, int(word[1:]))
    try:
        moment = datetime.fromisoformat(text.strip())
        return Position(Place.TIMESTAMP, int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is none of: earliest, latest, an offset (42), a time "
            "(2025-03-01T12:00:00Z, local without a zone, or @ and milliseconds since 1970)"
        ) from None


def parse_settings(pairs: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` of each."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{pair!r} is not of the form NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def time_text(timestamp_ms: int) -> str:
    """A time in UTC, with milliseconds; the bare number if no calendar has it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bytes_to_json(data: bytes | None) -> str | dict[str, str] | None:
    """Text where the bytes are UTF-8, else an object that says what it is."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def bytes_from_json(value: Any, what: str) -> bytes | None:
    """The other way round; raises `ValueError` for anything else."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error:
            raise ValueError(f"the base64 of {what} is damaged") from None
    raise ValueError(f'{what} must be a string, null or {{"base64": "..."}}')


def bytes_to_text(data: bytes | None) -> bytes:
    """For people: what is null says so."""
    return b"null" if data is None else data
