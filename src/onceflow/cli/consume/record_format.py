"""How `consume` writes a record: by a format with fields in braces, or as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

import typer

from onceflow.cli.common import bytes_to_json, bytes_to_text, time_text

if TYPE_CHECKING:
    from onceflow.client import Record

DEFAULT_FORMAT: Final = "{value}"
Render = Callable[["Record"], bytes]

_FIELDS: Final[dict[str, Render]] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp,
    "time": lambda record: time_text(record.timestamp).encode(),
    "key": lambda record: bytes_to_text(record.key),
    "value": lambda record: bytes_to_text(record.value),
    "headers": lambda record: b",".join(
        name.encode() + b"=" + bytes_to_text(value) for name, value in record.headers
    ),
}
_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\0": "\0"}


def format_renderer(template: str) -> Render:
    """Writes the template's text and fields; refuses a template with anything else in braces."""
    for escape, character in _ESCAPES.items():
        template = template.replace(escape, character)
    parts: list[bytes | Render] = []
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
        "headers": [{"key": name, "value": bytes_to_json(value)} for name, value in record.headers],
    }
