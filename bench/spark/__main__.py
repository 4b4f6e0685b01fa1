"""The speed bench of the Spark floor: exactly once against Spark's own connector, on one broker.

python -m bench.spark [--quick] [--only warm,small] [--rounds 3] [--targets kafka]
"""

from __future__ import annotations

from typing import Final

from bench.common.suite import Suite, main
from bench.spark.measures import FULL, MEASURES, QUICK, warm_up
from bench.spark.report import CATALOGUE

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
