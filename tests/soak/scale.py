"""How fast things turn over: in seconds for a run of a minute, in a minute or two for an hour.

A run shows that something is flat only if all that is kept for a while has come and gone several
times in it: records, producers, transactional ids, offsets, idle connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tests.soak.census import BYTES
from tests.soak.flatness import Bound
from tests.soak.samples import DESCRIPTORS, DISK, JOURNAL, MEMORY, THREADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Settings of the broker, and what of a trend is still flat."""

    kept_ms: int
    """How long records, producers and transactional ids are kept."""
    check_ms: int
    sample_s: float
    bounds: Mapping[str, Bound]
    tables: Bound

    def bound_of(self, name: str) -> Bound:
        """How much a series may grow."""
        if name.endswith(BYTES):
            return Bound(500_000, 0.5)
        return self.bounds.get(name, self.tables)

    @property
    def settings(self) -> dict[str, str]:
        """Of the broker: everything small, so that it is used again soon."""
        return {
            "num.partitions": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "connections.max.idle.ms": str(self.kept_ms),
            "log.retention.ms": str(self.kept_ms),
            "log.roll.ms": str(self.kept_ms // 4),
            "log.cleaner.min.cleanable.ratio": "0.1",
            "log.cleaner.delete.retention.ms": str(self.kept_ms // 4),
            "log.retention.check.interval.ms": str(self.check_ms),
            "log.cleaner.backoff.ms": str(self.check_ms),
            "offsets.retention.minutes": "1",
            "offsets.retention.check.interval.ms": str(self.check_ms),
            "producer.id.expiration.ms": str(self.kept_ms),
            "producer.id.expiration.check.interval.ms": str(self.check_ms),
            "transactional.id.expiration.ms": str(self.kept_ms),
            "transaction.remove.expired.transaction.cleanup.interval.ms": str(self.check_ms),
            "journal.first.file.bytes": "65536",
            "journal.largest.file.bytes": "1048576",
            "journal.files": "3",
            "os.checkpoint.bytes": "2000000",
        }


def _bounds(memory: float, disk: float) -> Mapping[str, Bound]:
    return MappingProxyType(
        {
            MEMORY: Bound(memory, 0.02),
            DESCRIPTORS: Bound(8),
            THREADS: Bound(0),
            DISK: Bound(disk, 0.1),
            JOURNAL: Bound(disk),
            "blocks": Bound(10_000, 0.02),
        }
    )


MINUTE = Scale(
    kept_ms=8_000,
    check_ms=1_000,
    sample_s=0.5,
    bounds=_bounds(memory=4.0, disk=2.0),
    tables=Bound(60, 0.3),
)
HOUR = Scale(
    kept_ms=90_000,
    check_ms=5_000,
    sample_s=3.0,
    bounds=_bounds(memory=4.0, disk=4.0),
    tables=Bound(60, 0.15),
)
