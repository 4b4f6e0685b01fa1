"""The work of `onceflow consume`: what a fetcher brings is written out, then committed."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Final

from onceflow.cli.output import Bar, note
from onceflow.cli.record_format import Render
from onceflow.cli.session import Session
from onceflow.client import admin
from onceflow.client.errors import LOST
from onceflow.client.fetched import Record
from onceflow.client.fetcher import Fetcher
from onceflow.client.model import TopicPartition

POLL_SECONDS: Final = 0.5
COMMIT_SECONDS: Final = 5.0
RECORDS_AT_ONCE: Final = 10_000


class Reading:
    """One run of the command: what was written out so far, and what the group was told."""

    def __init__(
        self, session: Session, fetcher: Fetcher, render: Render, group: str | None, bar: Bar
    ) -> None:
        self._session = session
        self._fetcher = fetcher
        self._render = render
        self._group = group
        self._bar = bar
        self._written = 0
        self._places = self._positions()
        """Up to where all is written out."""
        self._uncommitted: dict[TopicPartition, int] = {}
        self._committed_at = time.monotonic()

    def run(self, ends: Mapping[TopicPartition, int] | None, most: int | None) -> None:
        """Until `most` records are written, or all partitions are at their ends."""
        try:
            has_told = ends is not None
            while self._is_going_on(ends) and (most is None or self._written < most):
                left = (
                    RECORDS_AT_ONCE if most is None else min(most - self._written, RECORDS_AT_ONCE)
                )
                records = self._session.run(
                    self._fetcher.next_records(POLL_SECONDS, max_records=left)
                )
                self._write(records, ends)
                if time.monotonic() > self._committed_at + COMMIT_SECONDS:
                    self._commit()
                if not records and not has_told:
                    note("End of the topic; waiting for more. Ctrl-C stops.")
                    has_told = True
        except LOST:
            # A commit would only wait for the same broker, as long again.
            self._uncommitted.clear()
            raise
        finally:
            self._commit()

    def _is_going_on(self, ends: Mapping[TopicPartition, int] | None) -> bool:
        """Whether there is anything left to read; what is at its end is not asked for any more."""
        if ends is None:
            return True
        done = [each for each, place in self._places.items() if place >= ends[each]]
        self._fetcher.pause(done)
        return len(done) < len(self._places)

    def _write(self, records: list[Record], ends: Mapping[TopicPartition, int] | None) -> None:
        if ends is not None:
            last = {each.partition: end for each, end in ends.items()}
            records = [each for each in records if each.offset < last[each.partition]]
        sys.stdout.buffer.write(b"".join(map(self._render, records)))
        sys.stdout.buffer.flush()
        self._written += len(records)
        self._bar.advance(len(records))
        for partition, place in self._positions().items():
            place = place if ends is None else min(place, ends[partition])
            if place > self._places[partition]:
                self._places[partition] = self._uncommitted[partition] = place

    def _positions(self) -> dict[TopicPartition, int]:
        found = {each: self._fetcher.position(each) for each in self._fetcher.assigned}
        return {each: place for each, place in found.items() if place is not None}

    def _commit(self) -> None:
        self._committed_at = time.monotonic()
        if self._group is None or not self._uncommitted:
            return
        offsets, self._uncommitted = self._uncommitted, {}
        self._session.run(admin.commit_offsets(self._session.cluster, self._group, offsets))
