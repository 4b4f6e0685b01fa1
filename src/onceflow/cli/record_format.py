"""How `consume` writes a record: by a format with fields in braces, or as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from onceflow.cli.values import bytes_to_json, bytes_to_text, time_text

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_FORMAT: Final = "{value}"


class Record(NamedTuple):
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[dict[str, Any]]


Render = Callable[[Record], bytes]

_FIELDS: Final[dict[str, Callable[[Record], bytes]]] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp,
    "time": lambda record: time_text(record.timestamp).encode(),
    "key": lambda record: bytes_to_text(record.key),
    "value": lambda record: bytes_to_text(record.value),
    "headers": lambda record: b",".join(
        each["key"].encode() + b"=" + bytes_to_text(each["value"]) for each in record.headers
    ),
}
_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\0": "\0"}


def format_renderer(template: str) -> Render:
    """Writes the template's text and fields; refuses a template with anything else in braces."""
    for escape, character in _ESCAPES.items():
        template = template.replace(escape, character)
    parts: list[bytes | Callable[[Record], bytes]] = []
    try:
        for text, field, spec, conversion in Formatter().parse(template):
            parts.append(text.encode())
            if field is None:
                continue
            if field not in _FIELDS or spec or conversion:
                raise ValueError(f"{{{field}}} is not a field")
            parts.append(_FIELDS[field])
    except ValueError as error:
        names = ", ".join(f"{{{name}}}" for name in _FIELDS)
        raise typer.BadParameter(f"{template!r}: {error}; the fields are {names}") from None

    def render(record: Record) -> bytes:
        written = [part if isinstance(part, bytes) else part(record) for part in parts]
        return b"".join(written) + b"\n"

    return render


def json_renderer(record: Record) -> bytes:
    """A line that `produce --json` takes."""
    place = {"topic": record.topic, "partition": record.partition}
    return json.dumps(place | json_fields(record), ensure_ascii=False).encode() + b"\n"


def json_fields(record: Record) -> dict[str, Any]:
    """A record without the name of its place."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": bytes_to_json(record.key),
        "value": bytes_to_json(record.value),
        "headers": [
            {"key": each["key"], "value": bytes_to_json(each["value"])} for each in record.headers
        ],
    }


def records_of(topic: str, partition: int, columns: pa.RecordBatch) -> Iterator[Record]:
    """The rows of the columns, one by one."""
    import pyarrow as pa

    # As numbers: not every timestamp that a record can have is in the calendar.
    timestamps = columns.column("timestamp").cast(pa.int64())
    rows: Any = zip(
        columns.column("offset").to_pylist(),
        timestamps.to_pylist(),
        columns.column("key").to_pylist(),
        columns.column("value").to_pylist(),
        columns.column("headers").to_pylist(),
        strict=True,
    )
    for row in rows:
        yield Record(topic, partition, *row)
