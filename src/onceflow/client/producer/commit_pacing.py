"""How long to wait between the end of a transaction and the first batch of the next.

Some brokers respond to a commit before its markers are written. A batch that arrives in between
then waits in steps far longer than the writing takes, while a batch a moment later is written at
once. The length of that moment is learned here, from the response times of first batches. With a
broker that makes no batch wait there is no pause, nor with one where a pause does not help. Times
are passed in, as monotonic seconds.

Such brokers do not make offset commits wait but refuse them, and these can be sent again at once.
So offsets of a transaction, if there are any, go first, and batches follow once they are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SLOW_S: Final = 0.015
"""What a first batch takes more than the end before it when it was made to wait: Apache Kafka does
that in steps of 20 ms (`add.partitions.to.txn.retry.backoff.ms`)."""
_SOON: Final = 10
"""Transactions within which a second one has to be slow: a lone one has other reasons."""
_LONGER_S: Final = 0.001
_SHORTER: Final = 0.995
"""A batch that waits costs far more than a pause that is a little too long: up in large steps, down
in small ones."""
_LONGEST_S: Final = 0.01
_NOTHING_S: Final = 0.0001
_HOPELESS: Final = 200
"""Transactions for which nothing is tried when the longest pause was not long enough."""


class CommitPacing:
    """Belongs to one transactional producer."""

    __slots__ = (
        "_end_took_s",
        "_ended_at",
        "_is_first",
        "_is_held",
        "_pause_s",
        "_sent_at",
        "_since_slow",
        "_skipped",
        "offsets_follow",
    )

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._ended_at = 0.0
        self._end_took_s = 0.0
        self._is_first = False
        self._is_held = False
        self._sent_at: float | None = None
        self._since_slow = _SOON
        self._skipped = 0
        self.offsets_follow = False
        """Whether all transactions have offsets, so that batches are better left to come behind."""

    @property
    def pause_s(self) -> float:
        """What was learnt so far."""
        return self._pause_s

    @property
    def is_needed(self) -> bool:
        """Whether this broker makes those wait that come too soon."""
        return self._pause_s > 0

    @property
    def is_first(self) -> bool:
        """Whether nothing was sent since the last transaction ended."""
        return self._is_first

    @contextmanager
    def offsets_first(self) -> Iterator[None]:
        """While offsets are sent, as the first thing of a transaction, no batch goes."""
        self._is_held = True
        try:
            yield
            self._is_first = False
            self._went_well()  # or what was met with once would count for ever
        finally:
            self._is_held = False

    def ended(self, began: float, now: float) -> None:
        """A transaction has ended; asking for that began at `began`."""
        if not self._is_first:  # else nothing was sent in it
            self._is_first = True
            self._ended_at, self._end_took_s = now, now - began

    def held_until(self, now: float) -> float:
        """When the next batch may go, or ask again; `now` when it may go at once."""
        if self._is_held:
            return now + _LONGEST_S
        if not self._is_first:
            return now
        pause_s = _LONGEST_S if self.offsets_follow and self._pause_s else self._pause_s
        return max(now, self._ended_at + pause_s)

    def sent(self, now: float) -> None:
        """A batch goes."""
        if self._is_first:
            self._is_first = False
            self._sent_at = now

    def answered(self, now: float, *, refused: bool = False) -> None:
        """The answer to a batch has come; `refused` because the end before was not done yet."""
        if self._sent_at is None:
            return
        took_s, self._sent_at = now - self._sent_at, None
        if self._skipped:
            self._skipped -= 1
        elif refused or took_s >= self._end_took_s + _SLOW_S:
            self._was_slow()
        else:
            self._went_well()

    def _went_well(self) -> None:
        self._since_slow += 1
        shorter = self._pause_s * _SHORTER
        self._pause_s = shorter if shorter > _NOTHING_S else 0.0

    def _was_slow(self) -> None:
        is_alone = not self._pause_s and self._since_slow >= _SOON
        self._since_slow = 0
        if self._pause_s >= _LONGEST_S:
            self._pause_s, self._skipped = 0.0, _HOPELESS
        elif not is_alone:
            self._pause_s += _LONGER_S
