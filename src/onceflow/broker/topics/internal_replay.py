"""What a start cannot apply of the records in which the broker keeps its own state.

One bad record must not keep a broker from ever starting again, nor be lost without a word: it is
skipped, named in the log with its place and the reason, and counted. It stays in the log.

A record that a newer version wrote is another matter. There is nothing wrong with it, and a start
that skips it forgets what it says, such as a committed offset. So the start refuses and says how to
go on: with that version, or with `skip.unknown.records`.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from onceflow.errors import NewerFormat, NewerRecord, OnceflowError

_MOST_NAMED = 100
"""One cause can spoil a million records: the others are only counted."""

_log = logging.getLogger(__name__)


class _Newer(NamedTuple):
    partition: int
    offset: int
    error: NewerRecord


class Unapplied:
    """The records of one topic that a start could not apply."""

    def __init__(self, topic: str, *, skip_unknown: bool = False) -> None:
        self._topic = topic
        self._skip_unknown = skip_unknown
        self._newer: list[_Newer] = []
        self.skipped = 0

    def add(self, partition: int, offset: int, error: OnceflowError) -> None:
        """Takes note of one record, or of what follows it in its batch."""
        if isinstance(error, NewerRecord) and not self._skip_unknown:
            self._newer.append(_Newer(partition, offset, error))
            return
        self.skipped += 1
        if self.skipped <= _MOST_NAMED:
            _log.error(
                "skipped the record at offset %d of %s-%d, which cannot be applied: %s",
                offset,
                self._topic,
                partition,
                error,
            )

    def tell(self) -> None:
        """All records were read. Raises `NewerFormat` where a newer version wrote some of them."""
        if self._newer:
            partition, offset, error = self._newer[0]
            raise NewerFormat(
                f"{len(self._newer)} records of {self._topic} were written by a newer version, the "
                f"first at offset {offset} of partition {partition}: {error}. Nothing was changed. "
                "Start the version that wrote them, or start once with skip.unknown.records = true "
                "(onceflow serve --set skip.unknown.records=true): then what they say is forgotten"
            )
        if self.skipped:
            _log.error(
                "skipped %d records of %s that cannot be applied: what they said of groups or "
                "transactions does not count; the first %d are named above",
                self.skipped,
                self._topic,
                min(self.skipped, _MOST_NAMED),
            )
