"""How long to leave a broker alone between a transaction's end and the first batch of the next.

Some brokers answer a commit before its markers are written. A batch that comes in the meantime is
then made to wait in steps that are far longer than the writing takes, while one that comes a moment
later is taken at once. How long that moment is nobody says: it is learnt here, from what the first
batches of transactions meet with. A broker that makes none of them wait is not waited for, and one
where coming later does not help is asked at once again. Times are passed in, as monotonic seconds.
"""

from __future__ import annotations

from typing import Final

_SLOW_S: Final = 0.015
"""What a first batch takes more than the end before it when it was made to wait: Apache Kafka does
that in steps of 20 ms (`add.partitions.to.txn.retry.backoff.ms`)."""
_SOON: Final = 10
"""Transactions within which a second one has to be slow: a lone one has other reasons."""
_LONGER_S: Final = 0.0005
_SHORTER: Final = 0.98
"""A batch that waits costs far more than a pause that is a little too long: up in large steps, down
in small ones."""
_LONGEST_S: Final = 0.01
_NOTHING_S: Final = 0.0001
_HOPELESS: Final = 200
"""Transactions for which nothing is tried when the longest pause was not long enough."""


class Settling:
    """Belongs to one transactional producer."""

    __slots__ = (
        "_end_took_s",
        "_ended_at",
        "_is_first",
        "_pause_s",
        "_sent_at",
        "_since_slow",
        "_skipped",
    )

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._ended_at = 0.0
        self._end_took_s = 0.0
        self._is_first = False
        self._sent_at: float | None = None
        self._since_slow = _SOON
        self._skipped = 0

    @property
    def pause_s(self) -> float:
        """What was learnt so far."""
        return self._pause_s

    def ended(self, began: float, now: float) -> None:
        """A transaction has ended; asking for that began at `began`."""
        if not self._is_first:  # else nothing was sent in it
            self._is_first = True
            self._ended_at, self._end_took_s = now, now - began

    def held_until(self, now: float) -> float:
        """When the next batch may go; `now` when it may go at once."""
        return max(now, self._ended_at + self._pause_s) if self._is_first else now

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
