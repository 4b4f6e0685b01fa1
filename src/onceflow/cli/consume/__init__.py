"""`onceflow consume`: the records of a topic, from a place on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.cli.consume.record_format import json_fields as json_fields
else:
    __getattr__ = door(
        __name__,
        {
            "record_format": "json_fields",
        },
    )
