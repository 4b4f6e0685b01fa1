"""The bench of transactions: Onceflow's broker, synced, against Apache Kafka.

python -m bench.transactions [--quick] [--only one,streams] [--rounds 3] [--targets kafka]
"""

from __future__ import annotations

from typing import Final

from bench.common.suite import Suite, main
from bench.transactions.measures import FULL, MEASURES, QUICK, warm_up
from bench.transactions.report import CATALOGUE

SUITE: Final = Suite(
    name="transactions",
    about="Transactions with Onceflow's broker and with Apache Kafka.",
    catalogue=CATALOGUE,
    measures=MEASURES,
    warm_up=warm_up,
    full=FULL,
    quick=QUICK,
    targets=("ours-fsync", "kafka-flush", "kafka"),
)

if __name__ == "__main__":
    main(SUITE)
