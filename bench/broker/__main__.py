"""The speed bench: Onceflow's broker against Apache Kafka.

python -m bench.broker [--quick] [--only stream,latency] [--rounds 3] [--targets kafka,ours-os]
"""

from __future__ import annotations

from typing import Final

from bench.broker.measures import FULL, MEASURES, QUICK, warm_up
from bench.broker.report import CATALOGUE
from bench.common.suite import Suite, main

SUITE: Final = Suite(
    name="broker",
    about="Onceflow's broker against Apache Kafka.",
    catalogue=CATALOGUE,
    measures=MEASURES,
    warm_up=warm_up,
    full=FULL,
    quick=QUICK,
)

if __name__ == "__main__":
    main(SUITE)
