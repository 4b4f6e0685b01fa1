"""Housekeeping jobs of one partition that have failed: reported, counted, and retried later.

Nothing durable depends on such a job (compaction, retention, a snapshot), so its failure is never
the end of the store, and never that of the same job for other partitions. How long it waits is
counted in rounds, that is in looks at what there is to do: no clock that jumps can stretch it, and
a failure that stays costs less and less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from onceflow.errors import DiskExhausted, StoreBusy, StoreClosed, StoreFailed

_LONGEST = 32
"""Rounds: eight minutes of compaction, some hours of retention, with the default settings."""


BLAMELESS = (DiskExhausted, StoreBusy, StoreClosed, StoreFailed)
"""Errors that any job may meet and that say nothing about its partition."""


class FailedJob(NamedTuple):
    """What went wrong, for the broker's log."""

    job: str
    subject: str
    """The topic and partition, or whatever else the job was for."""
    path: str
    """The file that it was at, as far as that is known; else a directory, or nothing."""
    error: Exception


class _Sentence:
    """How many rounds a job is left out, and how many are left of them."""

    __slots__ = ("left", "rounds")

    def __init__(self) -> None:
        self.rounds = self.left = 1


class Quarantine:
    """All jobs of a store; `failures` counts them by their names."""

    def __init__(self, report: Callable[[FailedJob], None]) -> None:
        self._report = report
        self._waiting: dict[tuple[str, str], _Sentence] = {}
        self.failures: Counter[str] = Counter()

    def attempt(self, job: str, subject: str, work: Callable[[], object], path: str = "") -> None:
        """Does the work unless this round leaves it out. Raises only `BLAMELESS` errors."""
        if not self.begin(job, subject):
            return
        try:
            work()
        except BLAMELESS:
            raise
        except Exception as error:  # of this one alone
            self.failed(job, subject, path, error)
        else:
            self.passed(job, subject)

    def begin(self, job: str, subject: str) -> bool:
        """Begins another round; whether the job takes part in it."""
        sentence = self._waiting.get((job, subject))
        if sentence is None or sentence.left == 0:
            return True
        sentence.left -= 1
        return False

    def passed(self, job: str, subject: str) -> None:
        """The job succeeded: its earlier failures are forgotten."""
        self._waiting.pop((job, subject), None)

    def failed(self, job: str, subject: str, path: str, error: Exception) -> None:
        """It is left out of one round, then of twice as many each time it fails again."""
        sentence = self._waiting.get((job, subject))
        if sentence is None:
            self._waiting[job, subject] = _Sentence()
        else:
            sentence.left = sentence.rounds = min(2 * sentence.rounds, _LONGEST)
        self.report(job, subject, path, error)

    def report(self, job: str, subject: str, path: str, error: Exception) -> None:
        """As `failed`, for a job that is retried by other means than these rounds."""
        self.failures[job] += 1
        self._report(FailedJob(job, subject, path, error))

    def forget(self, subject: str) -> None:
        """Forgets a partition that is gone."""
        for key in [key for key in self._waiting if key[1] == subject]:
            del self._waiting[key]
