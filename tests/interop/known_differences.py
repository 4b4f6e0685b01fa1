"""Where Onceflow's broker answers otherwise than Apache Kafka, on purpose, each with its reason."""

from __future__ import annotations

from typing import Final

from tests.interop.harness import KnownDifference

KNOWN_DIFFERENCES: Final[tuple[KnownDifference, ...]] = ()
