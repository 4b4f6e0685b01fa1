"""How the value of a record is written."""

from __future__ import annotations

from enum import Enum


class Format(Enum):
    """How the value of a record is written."""

    JSON = "json"
    CSV = "csv"
    TEXT = "text"
    RAW = "raw"

    @property
    def has_columns(self) -> bool:
        return self in (Format.JSON, Format.CSV)
