"""The speed bench of the client: Onceflow's against aiokafka and confluent-kafka, on one broker.

python -m bench.client [--quick] [--only send,import] [--rounds 3] [--targets kafka,ours-os]
"""

from __future__ import annotations

from typing import Final

from bench.client.measures import FULL, MEASURES, QUICK, warm_up
from bench.client.report import CATALOGUE
from bench.common.suite import Suite, main

SUITE: Final = Suite(
    name="client",
    about="Onceflow's client against aiokafka and confluent-kafka.",
    catalogue=CATALOGUE,
    measures=MEASURES,
    warm_up=warm_up,
    full=FULL,
    quick=QUICK,
    targets=("ours-os", "kafka"),
)

if __name__ == "__main__":
    main(SUITE)
