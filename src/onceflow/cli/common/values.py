"""What users write and read: places in a log, settings, times, and bytes as text or JSON."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
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
        return Position(Place.TIMESTAMP, _milliseconds(datetime.fromisoformat(text.strip())))
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is none of: earliest, latest, an offset (42), a time "
            "(2025-03-01T12:00:00Z, local without a zone, or @ and milliseconds since 1970)"
        ) from None


def _milliseconds(moment: datetime) -> int:
    """Since 1970. What was before that is the beginning of all logs: below zero Kafka has numbers
    with another meaning, such as -1 for the end."""
    return max(0, int(moment.timestamp() * 1000))


def parse_pairs(texts: Iterable[str]) -> list[tuple[str, str]]:
    """`NAME=VALUE` of each, in order."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE")
        pairs.append((name.strip(), value.strip()))
    return pairs


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """The same by name, where the last one counts."""
    return dict(parse_pairs(texts))


def parse_client_settings(texts: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE`, or `@` and the name of a file with one of them on each line, with dots in all
    names; of what is set twice the last one counts."""
    settings: dict[str, str] = {}
    for text in texts:
        lines = _lines_of(Path(text[1:])) if text.startswith("@") else [text]
        settings |= {name.replace("_", "."): value for name, value in parse_pairs(lines)}
    return settings


def _lines_of(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{path} is not a text: {error}") from error
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def parse_topic(text: str) -> tuple[str, list[int]]:
    """`orders`, or `orders:0,2`; no numbers means all partitions."""
    name, colon, numbers = text.partition(":")
    parts = numbers.split(",") if colon else []
    if not name or not all(part.isascii() and part.isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r} is not of the form TOPIC or TOPIC:0,1")
    return name, [int(part) for part in parts]


def time_text(timestamp_ms: int) -> str:
    """A time in UTC, with milliseconds; the bare number if no calendar has it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(milliseconds: int) -> str:
    """Two units at most: `12 s`, `3 min 20 s`, `2 h 5 min`."""
    seconds = max(0, milliseconds) // 1000
    if seconds < 60:
        return f"{seconds} s"
    large, small, names = (seconds // 60, seconds % 60, ("min", "s"))
    if large >= 60:
        large, small, names = (large // 60, large % 60, ("h", "min"))
    return f"{large} {names[0]}" + (f" {small} {names[1]}" if small else "")


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
