"""From Fahrenheit to Celsius, by column."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

COLDEST = -90.0
HOTTEST = 60.0


def clean(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What can be, and what cannot."""
    celsius = pc.divide(pc.subtract(table["fahrenheit"], 32.0), 1.8)
    in_range = pc.and_(pc.greater(celsius, COLDEST), pc.less(celsius, HOTTEST))
    can_be = pc.fill_null(in_range, False)
    cleaned = table.select(["sensor", "number"]).append_column("celsius", celsius)
    refused = table.filter(pc.invert(can_be))
    why = pa.array(["no such temperature"] * refused.num_rows, pa.string())
    return cleaned.filter(can_be), refused.append_column("error", why)
