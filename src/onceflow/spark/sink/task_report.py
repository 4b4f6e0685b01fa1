"""What tasks tell the driver when they have written: how many rows each attempt wrote where.

The reports of a task are one value of bytes, alone in its row: the driver takes it out of a row of
the JVM with one call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

REPORT: Final = "report"
"""The column of the reports, of a frame that has no other."""
REPORT_SCHEMA: Final = f"{REPORT} binary"
ALL_ROWS: Final = -1
"""As a target: how many rows the task was given."""


class Report(NamedTuple):
    """What a task attempt wrote to one output partition."""

    task: int
    attempt: int
    target: int
    rows: int
    last_sequence: int


def reports_to_bytes(reports: Iterable[Report]) -> bytes:
    """All of one task."""
    return json.dumps(list(reports)).encode()


def reports_from_bytes(told: bytes) -> list[Report]:
    return [Report(*each) for each in json.loads(told)]
