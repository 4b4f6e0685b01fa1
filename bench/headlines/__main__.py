"""The headlines of speed, in five minutes: ratios, held against those that were kept last.

python -m bench.headlines [--quick] [--only produce,one] [--rounds 1] [--keep]

Each is a part of another bench, for a second or so. Spark is not among them: a session takes most
of a minute until it shows what it can do, and `bench.spark` has it.
"""

from __future__ import annotations

from typing import Final

from bench.common.suite import Suite, main
from bench.headlines.measures import FULL, MEASURES, QUICK, warm_up
from bench.headlines.report import CATALOGUE

SUITE: Final = Suite(
    name="headlines",
    about="The headlines of all benches but Spark's, held against the kept figures.",
    catalogue=CATALOGUE,
    measures=MEASURES,
    warm_up=warm_up,
    full=FULL,
    quick=QUICK,
    rounds=1,
)

if __name__ == "__main__":
    main(SUITE)
