"""The speed bench of the Spark floor: exactly once against Spark's own connector, on one broker.

python -m bench.spark [--quick] [--only warm,small] [--rounds 3] [--targets kafka]
"""

from __future__ import annotations

from typing import Final

from bench.spark_measures import FULL, MEASURES, QUICK, warm_up
from bench.spark_report import CATALOGUE
from bench.suite import Suite, main

SUITE: Final = Suite(
    name="spark",
    about="Onceflow's source and sink against Spark's own connector.",
    catalogue=CATALOGUE,
    measures=MEASURES,
    warm_up=warm_up,
    full=FULL,
    quick=QUICK,
    targets=("kafka",),
)

if __name__ == "__main__":
    main(SUITE)
