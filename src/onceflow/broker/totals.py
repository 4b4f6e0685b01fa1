"""What a broker has done between its start and an orderly stop, in one line of its log."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from onceflow.log import JournalTotals
from onceflow.wire import ApiKey

_MB = 1e6


class Totals(NamedTuple):
    """Requests served, by the number of their API; the journal's part is None without one."""

    served: Mapping[int, int]
    journal: JournalTotals | None
    failed_jobs: Mapping[str, int] = MappingProxyType({})
    """Of housekeeping: how often each has failed for one partition, and was left for later."""

    def __str__(self) -> str:
        """`served 12 requests (Produce 10, Metadata 2), wrote 11 journal groups, 0.1 MB`"""
        requests = ", ".join(f"{name} {count}" for name, count in self._by_name().items())
        said = f"served {sum(self.served.values())} requests"
        if requests:
            said += f" ({requests})"
        if self.journal is not None:
            said += f", wrote {self.journal.groups} journal groups, "
            said += f"{self.journal.bytes / _MB:.1f} MB"
        if self.failed_jobs:
            jobs = ", ".join(f"{job} {count}" for job, count in sorted(self.failed_jobs.items()))
            said += f", {sum(self.failed_jobs.values())} jobs of housekeeping failed ({jobs})"
        return said

    def as_json(self) -> dict[str, Any]:
        """The same, exact, for machines."""
        return {
            "requests": self._by_name(),
            "journal": None if self.journal is None else self.journal._asdict(),
            "failed_jobs": dict(self.failed_jobs),
        }

    def _by_name(self) -> dict[str, int]:
        """The most frequent first."""
        ordered = sorted(self.served.items(), key=lambda each: (-each[1], each[0]))
        return {ApiKey(key).title: count for key, count in ordered}
