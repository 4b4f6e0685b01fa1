"""What reading counts: fetches with their time and size, and bytes of what was read.

All of it happens once for each answer of a broker, nothing for each record.
"""

from __future__ import annotations

from collections.abc import Callable

from onceflow.client.metrics import Meter, Metric, amounts, durations, sizes


class FetchMetrics:
    """Told by the fetcher; read by anybody."""

    def __init__(self, clock: Callable[[], float]) -> None:
        now = clock()
        self.now = clock
        self._fetches, self._latencies, self._sizes = Meter(now), Meter(now), Meter(now)
        self._throttles, self._bytes = Meter(now), Meter(now)
        self.metrics: tuple[Metric, ...] = (
            *amounts("bytes-consumed", "bytes of batches that records were read from", self._bytes),
            *amounts("fetch", "Fetch requests", self._fetches),
            *durations("fetch-latency", "from a Fetch request to its answer", self._latencies),
            *sizes("fetch-size", "bytes of an answer", self._sizes),
            *durations("fetch-throttle-time", "the broker had a Fetch wait", self._throttles),
        )

    def fetched(self, sent_at: float, size: int, throttle_ms: int) -> None:
        """A Fetch was answered, with so many bytes."""
        now = self.now()
        self._fetches.add(1, now)
        self._latencies.add((now - sent_at) * 1000, now)
        self._sizes.add(size, now)
        self._throttles.add(throttle_ms, now)

    def decoded(self, size: int) -> None:
        """So many bytes of batches, as they were sent, have become records."""
        self._bytes.add(size, self.now())
