"""Forgetting producers that have been silent for `producer.id.expiration.ms`.

The clock runs only while this broker does, and nobody can set it: a partition promises to recognise
a repeat for as long as one could have come. None can while the broker is down, so that time does
not count, and neither does a jump of the wall clock. Timestamps of records do not count either,
because clients choose them: a backfill of last year is as fresh as any other batch. Snapshots carry
a producer's silence over a restart; without one it begins at the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from onceflow.broker.topics import HostedPartition, Topics
from onceflow.log import Quarantine
from onceflow.runtime import Clock

_JOB: Final = "expiry of producers"
_SLICE = 2048
"""Producers, or partitions without any, checked in one turn of the loop: about a millisecond."""


class ProducerExpiry:
    """Expires the producers of all partitions; belongs to the broker's loop."""

    def __init__(
        self, topics: Topics, quarantine: Quarantine, clock: Clock, silent_ms: int
    ) -> None:
        self._topics = topics
        self._quarantine = quarantine
        self._clock = clock
        self.silent_ms = silent_ms
        """May be altered at any time."""
        self._started = clock.monotonic()

    def run(self) -> Iterator[None]:
        """Checks all producers once; to be run in slices."""
        left = _SLICE
        partitions = [
            partition for topic in self._topics.by_name.values() for partition in topic.partitions
        ]
        for partition in partitions:
            ids = iter(list(partition.producers.ids()))
            goes_on = self._quarantine.begin(_JOB, partition.log.name)
            while goes_on:
                some = list(islice(ids, _SLICE))
                goes_on = self._expire(partition, some) and len(some) == _SLICE
                left -= 1 + len(some)
                if left <= 0:
                    left = _SLICE
                    yield

    def _expire(self, partition: HostedPartition, ids: list[int]) -> bool:
        """Whether that went well."""
        now_ms = int((self._clock.monotonic() - self._started) * 1000)
        name = partition.log.name
        try:
            partition.producers.expire(now_ms, self.silent_ms, ids)
        except Exception as error:  # the other partitions must not grow because of this one
            self._quarantine.failed(_JOB, name, partition.log.directory, error)
            return False
        self._quarantine.passed(_JOB, name)
        return True
