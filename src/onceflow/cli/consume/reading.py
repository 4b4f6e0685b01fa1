"""The work of `onceflow consume`: what a consumer brings is written out, then committed.

The consumer runs on a thread of its own: its group hears from it also while the output waits for
its reader. What is committed was written out before, to the last byte.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from onceflow.blocking import Consumer, RebalanceListener
from onceflow.cli.common import Bar, hold_up, note, warn
from onceflow.cli.consume.record_format import Render
from onceflow.client import LOST, CommitFailed, Record
from onceflow.types import TopicPartition

POLL_SECONDS: Final = 0.5
COMMIT_SECONDS: Final = 5.0
RECORDS_AT_ONCE: Final = 10_000

Places = Mapping[TopicPartition, int]
Partitions = Collection[TopicPartition]


class Bounds(NamedTuple):
    """What is to be read."""

    starts: Places
    """Where, unless the group has committed something."""
    ends: Places | None
    """Up to where; None: as long as there is somebody to read it."""
    most: int | None
    """How many records at most."""

    @property
    def total(self) -> int | None:
        """How many records there may be; None when that is not known."""
        if self.ends is None:
            return self.most
        total = sum(max(0, self.ends[each] - start) for each, start in self.starts.items())
        return total if self.most is None else min(total, self.most)


class Reading(RebalanceListener):
    """One run of the command: what was written out so far, and what was committed to the group, if
    there is one."""

    def __init__(
        self,
        consumer: Consumer,
        render: Render,
        group: str | None,
        bounds: Bounds,
        bar: Bar,
        *,
        as_json: bool,
    ) -> None:
        self._consumer = consumer
        self._render = render
        self._group = group
        self._bounds = bounds
        self._bar = bar
        self._as_json = as_json
        self._written = 0
        self._places: dict[TopicPartition, int] = {}
        """Behind the last record of each partition that was written out."""
        self._committed: dict[TopicPartition, int] = {}
        self._committed_at = time.monotonic()
        self._is_cut_short = False
        self._is_in = False
        """It is known what is to be read, which may be nothing."""

    # --- what is read ---------------------------------------------------------------------------

    def share(self, topic: str) -> None:
        """With the others of the group."""
        note(f"Joining group {self._group} ...")
        self._consumer.subscribe([topic], self)

    def take(self, partitions: Partitions) -> None:
        """These, whatever others read."""
        self._consumer.assign(partitions)
        self.on_partitions_assigned(partitions)

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Where the group is; elsewhere, where the user said, or at the beginning of what is newer
        than that."""
        wants = self._group is not None and partitions
        committed = self._consumer.committed(partitions) if wants else {}
        for partition in partitions:
            if partition in committed:
                self._committed[partition] = committed[partition].offset
            elif partition in self._bounds.starts:
                self._consumer.seek(partition, self._bounds.starts[partition])
            else:
                self._consumer.seek_to_beginning([partition])
        self._is_in = True

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        """The last moment to commit them."""
        if not self._commit(partitions):
            self._tell_repeats()
        self._forget(partitions)

    def on_partitions_lost(self, partitions: Partitions) -> None:
        """Others have them already."""
        self._tell_repeats()
        self._forget(partitions)

    def _forget(self, partitions: Partitions) -> None:
        self._is_in = False  # until the group has said what it is given now
        for partition in partitions:
            self._places.pop(partition, None)
            self._committed.pop(partition, None)

    def _tell_repeats(self) -> None:
        warn(
            "the records printed since the last commit are not committed; the next member of the "
            "group that reads them prints them again",
            as_json=self._as_json,
        )

    # --- reading --------------------------------------------------------------------------------

    def run(self) -> None:
        """Until so many records are written as are wanted, or all partitions are at their ends."""
        try:
            self._run()
        except LOST:
            # A commit would only wait for the same broker, as long again.
            self._group = None
            raise
        except BaseException:
            # The consumer may have handed out records that were not written.
            self._is_cut_short = True
            raise
        finally:
            self._commit(list(self._places))

    def _run(self) -> None:
        most, has_told = self._bounds.most, self._bounds.ends is not None
        while most is None or self._written < most:
            left = RECORDS_AT_ONCE if most is None else min(most - self._written, RECORDS_AT_ONCE)
            records = self._consumer.poll(POLL_SECONDS, max_records=left)
            self._write(records)
            if time.monotonic() > self._committed_at + COMMIT_SECONDS:
                self._commit(list(self._places))
            if self._is_at_end({each.partition for each in records}):
                return
            if self._is_in and not records and not has_told:
                has_told = self._tell_the_wait()

    def _tell_the_wait(self) -> bool:
        """Why nothing comes, once that is known."""
        if not self._consumer.assignment:
            note(f"Other members of group {self._group} have all partitions; waiting for one.")
        elif any(each.records for each in self._consumer.lag().values()):
            return False
        else:
            note("End of the topic; waiting for more. Ctrl-C stops.")
        return True

    def _write(self, records: list[Record]) -> None:
        ends = self._bounds.ends
        if ends is not None:
            last = {each.partition: end for each, end in ends.items()}
            records = [each for each in records if each.offset < last.get(each.partition, 0)]
        with hold_up():
            sys.stdout.buffer.write(b"".join(map(self._render, records)))
            sys.stdout.buffer.flush()
            for each in records:
                self._places[TopicPartition(each.topic, each.partition)] = each.offset + 1
        self._written += len(records)
        self._bar.advance(len(records))

    def _is_at_end(self, brought: set[int]) -> bool:
        """Whether nothing is left to read; what is at its end is not asked for any more. Behind its
        last record a partition may have markers: whether they are passed is asked when it has
        brought nothing."""
        ends = self._bounds.ends
        if ends is None or not self._is_in:
            return False
        done = []
        assigned = self._consumer.assignment
        if not assigned:
            warn(f"other members of group {self._group} have all partitions", as_json=self._as_json)
        left = assigned - self._consumer.paused
        for partition in left:
            place = self._places.get(partition, 0)
            if partition.partition not in brought:
                place = self._consumer.position(partition)
            if place >= ends.get(partition, 0):
                done.append(partition)
        self._consumer.pause(done)
        return len(done) == len(left)

    # --- committing -----------------------------------------------------------------------------

    def _commit(self, partitions: Partitions) -> bool:
        """What was written out of these, as far as the group does not know it; whether it knows it
        now."""
        self._committed_at = time.monotonic()
        if self._group is None:
            return True
        places = {each: self._place(each) for each in partitions if each in self._places}
        news = {each: at for each, at in places.items() if at != self._committed.get(each)}
        try:
            self._consumer.commit(news)
        except CommitFailed:
            return False  # the next poll joins again, and tells what is lost
        self._committed |= news
        return True

    def _place(self, partition: TopicPartition) -> int:
        """Behind what was written out, and behind the markers that follow."""
        place = self._places[partition]
        if self._is_cut_short or partition not in self._consumer.assignment:
            return place
        position = self._consumer.position(partition)
        end = position if self._bounds.ends is None else self._bounds.ends.get(partition, position)
        return max(place, min(position, end))
