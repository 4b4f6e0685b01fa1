"""What a member of a group counts: commits, heartbeats, and rebalances with what they cost."""

from __future__ import annotations

from collections.abc import Callable

from onceflow.client.metrics import Meter, Metric, ago, amounts, durations, hourly


class GroupMetrics:
    """Counted by the member's loop, its rebalancer and its commits; any task may read them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        now = clock()
        self.now = clock
        self._commits, self._commit_times = Meter(now), Meter(now)
        self._beats, self._beat_times = Meter(now), Meter(now)
        self._joins, self._join_times = Meter(now), Meter(now)
        self._syncs, self._sync_times = Meter(now), Meter(now)
        self._rebalances, self._rebalance_times = Meter(now), Meter(now)
        self._failures = Meter(now)
        self._assigned, self._revoked, self._lost = Meter(now), Meter(now), Meter(now)
        self._last_beat: float | None = None
        self._last_rebalance: float | None = None
        rebalance_times = self._rebalance_times
        self.metrics: tuple[Metric, ...] = (
            *amounts("commit", "commits of offsets", self._commits),
            *durations("commit-latency", "a commit took", self._commit_times),
            *amounts("heartbeat", "heartbeats that were answered", self._beats),
            Metric(
                "heartbeat-response-time-max",
                "from a heartbeat to its answer, at most, ms",
                False,
                self._beat_times.longest,
            ),
            ago("last-heartbeat", "the last heartbeat was sent", lambda: self._last_beat),
            *amounts("join", "times that the member joined the group", self._joins),
            *durations("join-time", "waiting for the other members took", self._join_times),
            *amounts("sync", "times that the member received its assignment", self._syncs),
            *durations("sync-time", "waiting for the leader's assignment took", self._sync_times),
            *hourly("rebalance", "rebalances that the member took part in", self._rebalances),
            *durations("rebalance-latency", "a rebalance took", rebalance_times),
            Metric(
                "rebalance-latency-total",
                "what rebalances took together, ms",
                True,
                lambda _: rebalance_times.total,
            ),
            *hourly("failed-rebalance", "attempts to join that failed", self._failures),
            ago("last-rebalance", "the last rebalance ended", lambda: self._last_rebalance),
            *durations("partition-assigned-latency", "on_partitions_assigned took", self._assigned),
            *durations("partition-revoked-latency", "on_partitions_revoked took", self._revoked),
            *durations("partition-lost-latency", "on_partitions_lost took", self._lost),
        )

    def committed(self, began: float) -> None:
        self._took(self._commits, self._commit_times, began)

    def beating(self) -> float:
        """A heartbeat is sent; the moment, for `beat`."""
        self._last_beat = now = self.now()
        return now

    def beat(self, began: float) -> None:
        self._took(self._beats, self._beat_times, began)

    def joined(self, began: float) -> None:
        self._took(self._joins, self._join_times, began)

    def synced(self, began: float) -> None:
        self._took(self._syncs, self._sync_times, began)

    def rebalanced(self, began: float) -> None:
        """The member has what it is given, and can go on."""
        self._last_rebalance = self._took(self._rebalances, self._rebalance_times, began)

    def rebalance_failed(self) -> None:
        self._failures.add(1, self.now())

    def assigned(self, began: float) -> None:
        self._told(self._assigned, began)

    def revoked(self, began: float) -> None:
        self._told(self._revoked, began)

    def lost(self, began: float) -> None:
        self._told(self._lost, began)

    def _told(self, times: Meter, began: float) -> None:
        now = self.now()
        times.add((now - began) * 1000, now)

    def _took(self, count: Meter, times: Meter, began: float) -> float:
        now = self.now()
        count.add(1, now)
        times.add((now - began) * 1000, now)
        return now
