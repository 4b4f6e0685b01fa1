"""The speed bench of the Spark floor against PyFlink: exactly once by both, on one broker.

python -m bench.flink [--quick] [--only warm,fresh-1k] [--rounds 3] [--targets kafka]
"""

from __future__ import annotations

import sys
from typing import Final

from bench.common.suite import Suite, main
from bench.flink.measures import FULL, MEASURES, QUICK, warm_up
from bench.flink.report import CATALOGUE
from tools.flink import FlinkError, ensure_flink

SUITE: Final = Suite(
    name="flink",
    about="Onceflow on Spark against PyFlink.",
    catalogue=CATALOGUE,
    measures=MEASURES,
    warm_up=warm_up,
    full=FULL,
    quick=QUICK,
    targets=("kafka",),
)

if __name__ == "__main__":
    try:
        ensure_flink()
    except FlinkError as problem:
        sys.exit(str(problem))
    main(SUITE)
