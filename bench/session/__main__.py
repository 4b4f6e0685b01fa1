"""The speed bench of sessions: consume, transform, produce in transactions, against aiokafka.

python -m bench.session [--quick] [--only session-1] [--rounds 3] [--targets kafka,ours-os]
"""

from __future__ import annotations

from typing import Final

from bench.common.suite import Suite, main
from bench.session.measures import FULL, MEASURES, QUICK, warm_up
from bench.session.report import CATALOGUE

SUITE: Final = Suite(
    name="session",
    about="Onceflow's session against the same loop by aiokafka.",
    catalogue=CATALOGUE,
    measures=MEASURES,
    warm_up=warm_up,
    full=FULL,
    quick=QUICK,
    targets=("ours-os", "kafka"),
)

if __name__ == "__main__":
    main(SUITE)
