"""What a consumer counts: records, polls and the time between them, and all that reading and the
group count; and how far it is behind, by what brokers said when they were last asked.

A poll costs a few additions. How far it is behind is worked out when a caller asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from typing import TYPE_CHECKING, Final, NamedTuple

from onceflow.client.consumer.record_iterator import RecordIterator
from onceflow.client.errors import NotAssigned
from onceflow.client.group import GroupMetrics
from onceflow.client.metrics import Meter, Metric, ago, amounts, durations, sizes, snapshot
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    from onceflow.client.consumer.fetcher import Fetcher


class FetchMetrics:
    """What reading counts: fetches with their time and size, and bytes of what was read. The
    fetcher adds to it once for each response of a broker, never for each record."""

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
            *durations("fetch-throttle-time", "the broker throttled a Fetch", self._throttles),
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


class Progress(NamedTuple):
    """Of one partition, when it was last fetched."""

    partition: TopicPartition
    lag: int
    """In records as far as they were fetched, in offsets behind that."""
    lead: int
    held_back: int


def progress(fetcher: Fetcher, iterator: RecordIterator, *, read_committed: bool) -> list[Progress]:
    """Of all partitions of which it is known; asks no broker."""
    found = []
    untaken = iterator.counts()
    for partition in sorted(fetcher.assigned):
        try:
            ends, position = fetcher.ends(partition), fetcher.position(partition)
            records, fetched_to = fetcher.ahead(partition)
        except NotAssigned:  # taken away while another thread asks
            continue
        if ends is None or position is None:
            continue
        end = ends.last_stable_offset if read_committed else ends.high_watermark
        lag = untaken.get(partition, 0) + records + max(0, end - fetched_to)
        lead = max(0, position - max(0, ends.log_start_offset))
        found.append(Progress(partition, lag, lead, max(0, ends.high_watermark - end)))
    return found


class ConsumerMetrics:
    """Counted by the consumer, however often it is started; any task may read them."""

    kind = "consumer"

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        has_group: bool,
        read_committed: bool,
    ) -> None:
        now = clock()
        self.now = clock
        self.fetching, self.group = FetchMetrics(clock), GroupMetrics(clock)
        self._fetcher: Fetcher | None = None
        self._record_iterator = RecordIterator()
        self._read_committed = read_committed
        self._records, self._between, self._idle = Meter(now), Meter(now), Meter(now)
        self._poll_began: float | None = None
        self._waited = 0.0
        self._of_all = (
            *self._own(),
            *self.fetching.metrics,
            *(self.group.metrics if has_group else ()),
        )

    def look_at(self, fetcher: Fetcher, iterator: RecordIterator) -> None:
        """It reads with these from now on."""
        self.consumed(self._record_iterator.count())
        self._fetcher, self._record_iterator = fetcher, iterator

    def _own(self) -> tuple[Metric, ...]:
        handed_out = "records that were handed out"
        waiting = "the part of the time that polls took"
        return (
            Metric("records-consumed-total", f"{handed_out}, so far", True, self._consumed),
            Metric("records-consumed-rate", f"{handed_out}, a second", False, self._records.rate),
            *durations("time-between-poll", "from one poll to the next", self._between),
            Metric("poll-idle-ratio-avg", waiting, False, self._idle.average),
            ago("last-poll", "the last poll began", lambda: self._poll_began),
        )

    def _consumed(self, _: float) -> float:
        # What was taken one by one since the last poll is not counted yet.
        return self._records.total + self._record_iterator.uncounted

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Those of the whole consumer, and those of the partitions that it reads now."""
        fetcher = self._fetcher
        assigned = [] if fetcher is None else fetcher.assigned
        found = (
            []
            if fetcher is None
            else progress(fetcher, self._record_iterator, read_committed=self._read_committed)
        )
        lags, leads = [each.lag for each in found], [each.lead for each in found]
        held = [each.held_back for each in found]
        return (
            *self._of_all,
            _fixed("assigned-partitions", "partitions that are read", len(assigned)),
            _fixed("records-lag-max", "the largest records-lag", max(lags, default=nan)),
            _fixed("records-lead-min", "the least records-lead", min(leads, default=nan)),
            _fixed("offsets-held-back-max", "the largest of them", max(held, default=nan)),
            *(_fixed("records-lag", _LAG, each.lag, each.partition) for each in found),
            *(_fixed("records-lead", _LEAD, each.lead, each.partition) for each in found),
            *(_fixed("offsets-held-back", _HELD, each.held_back, each.partition) for each in found),
        )

    def snapshot(self) -> Mapping[str, float]:
        """By Kafka's names; those of one partition have it in front."""
        return snapshot(self.metrics, self.now())

    def consumed(self, records: int) -> None:
        """So many were handed out."""
        if records:
            self._records.add(records, self.now())

    def poll_begins(self) -> None:
        now = self.now()
        if self._poll_began is not None and now > self._poll_began:
            between = now - self._poll_began
            self._between.add(between * 1000, now)
            self._idle.add(self._waited / between, now)
        self._poll_began = now

    def poll_ends(self) -> None:
        self._waited = self.now() - (self._poll_began or 0.0)


_LAG: Final = "records that could be handed out and were not, when the partition was last fetched"
_LEAD: Final = "offsets between the beginning of the log and what is handed out next"
_HELD: Final = "offsets that open transactions keep from being handed out"


def _fixed(name: str, meaning: str, value: float, of: TopicPartition | None = None) -> Metric:
    return Metric(name, meaning, False, lambda _: value, of)
