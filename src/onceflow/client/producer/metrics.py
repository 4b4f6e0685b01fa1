"""What a producer counts: records that were sent, were tried again, or failed; requests and their
time; transactions and how they ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onceflow.client.metrics import Meter, Metric, amounts, durations, snapshot
from onceflow.client.producer.batch import ProducerBatch


class ProducerMetrics:
    """Counted by the sender and the producer; any task may read them."""

    kind = "producer"

    def __init__(self, clock: Callable[[], float]) -> None:
        now = clock()
        self._clock = clock
        self._sends, self._bytes = Meter(now), Meter(now)
        self._retries, self._errors = Meter(now), Meter(now)
        self._requests, self._latencies, self._queue_times = Meter(now), Meter(now), Meter(now)
        self._commits, self._aborts, self._commit_times = Meter(now), Meter(now), Meter(now)
        self.metrics: tuple[Metric, ...] = (
            *amounts("record-send", "records that brokers have acknowledged", self._sends),
            *amounts("record-retry", "records that were sent again", self._retries),
            *amounts("record-error", "records that could not be sent", self._errors),
            *amounts("outgoing-byte", "bytes of batches that were sent", self._bytes),
            *amounts("request", "Produce requests", self._requests),
            *durations("request-latency", "from a Produce request to its answer", self._latencies),
            *durations("record-queue-time", "batches waited to be sent", self._queue_times),
            *amounts("txn-commit", "transactions that were committed", self._commits),
            *amounts("txn-abort", "transactions that were aborted", self._aborts),
            *durations("txn-commit-time", "a commit took", self._commit_times),
        )

    def now(self) -> float:
        return self._clock()

    def snapshot(self) -> Mapping[str, float]:
        """By Kafka's names."""
        return snapshot(self.metrics, self._clock())

    def batch_sent(self, batch: ProducerBatch, now: float) -> None:
        self._bytes.add(len(batch.buffer), now)
        if batch.attempts > 1:
            self._retries.add(batch.count, now)
        else:
            self._queue_times.add((now - batch.created) * 1000, now)

    def answered(self, sent_at: float) -> None:
        """Also when it is known by now that no answer will come."""
        now = self._clock()
        self._requests.add(1, now)
        self._latencies.add((now - sent_at) * 1000, now)

    def delivered(self, records: int) -> None:
        self._sends.add(records, self._clock())

    def failed(self, records: int) -> None:
        self._errors.add(records, self._clock())

    def committed(self, took_s: float) -> None:
        now = self._clock()
        self._commits.add(1, now)
        self._commit_times.add(took_s * 1000, now)

    def aborted(self) -> None:
        self._aborts.add(1, self._clock())
