"""The offsets of a stream: where it begins, how far each batch goes, what each task reads.

A batch's end holds its beginning (see `offsets`), so that a batch that runs again is the same
batch. The first answer differs from `initial` even when there is nothing to read: Spark then logs
an empty batch that says where the query begins, and "latest" means the same after a restart. A
partition that is added later is read from its earliest offset. Records that are gone are never
skipped silently: `failOnDataLoss` decides between an error and a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from onceflow.client import NoSuchPartition, TopicNotFound
from onceflow.errors import OnceflowError
from onceflow.runtime import Clock
from onceflow.spark.errors import OffsetsUnreadable, TopicsUnsettled
from onceflow.spark.source.cluster import Ends
from onceflow.spark.source.data_loss import LossRule
from onceflow.spark.source.offsets import (
    NOTHING_YET,
    BatchOffsets,
    Division,
    LogEntry,
    Offsets,
    OffsetSpan,
    count_new,
    divide,
    limited,
    spans,
    worth_tasks,
)
from onceflow.spark.source.options import SourceOptions
from onceflow.spark.source.positions import resolve_start
from onceflow.types import TopicPartition

LONGEST_WAIT_S: Final = 0.1
"""How long to wait for new records before Spark gets an empty answer."""
_LOOK_AROUND_S: Final = 1.0
"""How old the list of partitions may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """How much a batch may and must have; None: no limit."""

    most: int | None = None
    least: int | None = None


ALL: Final = Admission()


class _TopicChanged(OnceflowError):
    """While a batch was planned a topic was deleted and recreated."""


class StreamOffsets:
    """One query's source, on the driver; asked by one thread."""

    def __init__(self, options: SourceOptions, ends: Ends, clock: Clock) -> None:
        self._options = options
        self._ends = ends
        self._clock = clock
        self._loss = LossRule(options.fail_on_data_loss)
        self._begin: Offsets | None = None
        """Where a new query begins."""
        self._ids: Mapping[str, str] = {}
        """Of topics, when what was read last was planned."""
        self._confirmed: set[tuple[str, str]] = set()
        """Topics that were certainly recreated, and the ids they have since."""
        self._doubted: Mapping[str, str] = {}
        """Topics of which some brokers say another id, and the ids that they had and keep."""
        self._read_before: Offsets = {}
        """What the batch before has read."""
        self._assigned: set[TopicPartition] = set()
        self._assigned_at: float | None = None
        self._target: Offsets | None = None
        """Where a run that takes what is available now ends."""
        self._takes_available = False
        self._was_idle = False
        self._others_are_busy = False
        self._last_batch_at: float | None = None
        self._seen: BatchOffsets | None = None
        self._planned: BatchOffsets | None = None

    # --- what Spark asks ------------------------------------------------------------------------

    @property
    def initial(self) -> LogEntry:
        return dict(NOTHING_YET)

    def take_available(self) -> None:
        """From now on the stream ends where it ends now."""
        self._takes_available = True

    def latest(self, start: Mapping[str, Any], admission: Admission) -> LogEntry:
        """Where the batch that begins at `start` ends; `start` itself when there is nothing new."""
        is_first = start == NOTHING_YET
        known, available, planned = self._plan_from(start, admission)
        if planned.end == known and not is_first and not self._must_not_wait:
            self._ends.wait(available, LONGEST_WAIT_S)
            known, available, planned = self._plan_from(start, admission)
        for _ in range(self._options.end_retries):
            moved = {
                partition.topic
                for partition, end in planned.end.items()
                if known.get(partition) != end
            }
            if not self._have_changed(moved):
                break
            self._forget_edges()
            known, available, planned = self._plan_from(start, admission)
        self._seen = BatchOffsets(planned.end, available)
        is_new = planned.end != known or is_first
        self._was_idle, self._others_are_busy = not is_new, False
        self._planned = planned
        return planned.to_log() if is_new else dict(start)

    def report(self) -> LogEntry | None:
        """How far the query is behind: from where it has planned up to what there is."""
        return None if self._seen is None else self._seen.to_log()

    def batch_done(self) -> None:
        """Spark ran a batch. When there was nothing new here it was for another source, which must
        not wait for this one."""
        self._others_are_busy = self._was_idle

    def tasks(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> list[tuple[OffsetSpan, ...]]:
        """What each task of a batch reads."""
        if start == end:
            return []
        batch = BatchOffsets.from_log(end)
        begin = batch.start or self._begin_of_foreign(start, batch)
        wanted = spans(begin, batch.end, batch.ids)
        if batch != self._planned:  # but by a run before this one
            wanted = self._still_there(wanted, begin, batch.ids)
        return divide(wanted, self._division(wanted))

    def _division(self, wanted: Sequence[OffsetSpan]) -> Division:
        """Where tasks read several partitions anyway, there are as few tasks as are worth it."""
        chosen = self._options.division
        most = chosen.max_partitions
        if most is None or len(wanted) <= most or chosen.min_partitions is not None:
            return chosen
        return replace(chosen, max_partitions=worth_tasks(wanted, most))

    def _still_there(
        self, wanted: list[OffsetSpan], begin: Offsets, ids: Mapping[str, str]
    ) -> list[OffsetSpan]:
        self._read_before = begin  # what is gone of it is lost, and not named by mistake
        there = self._partitions(begin)
        self._loss.gone({span.place: span.start for span in wanted if span.place not in there})
        remade = self._recreated(ids)
        held = [span for span in wanted if span.place in there and span.topic not in remade]
        held = self._loss.clipped(held, self._ends.earliest([span.place for span in held]))
        return self._loss.cut(held, self._reaching([span for span in held if span.size]))

    def _reaching(self, wanted: Sequence[OffsetSpan]) -> Offsets:
        """Where logs end that are to be read up to there; asked for again where that is too early:
        right after a change of leader it can be old."""
        log_ends: dict[TopicPartition, int] = {}
        early = list(wanted)
        for attempt in range(self._options.end_retries + 1):
            if attempt:
                self._ends.sleep(self._options.end_retry_ms / 1000)
            log_ends |= self._ends.log_ends([span.place for span in early])
            early = [span for span in early if log_ends[span.place] < span.end]
            if not early:
                break
        return log_ends

    def _begin_of_foreign(self, start: Mapping[str, Any], batch: BatchOffsets) -> Offsets:
        """Where a batch begins that Spark's own source has planned."""
        if start == NOTHING_YET and batch.end:
            raise OffsetsUnreadable(
                "the first batch of this checkpoint was planned by another source and not run to "
                "its end, and where it begins is not known here; run it with that source first"
            )
        before = BatchOffsets.from_log(start).end
        return {**self._ends.earliest([each for each in batch.end if each not in before]), **before}

    # --- where things are -----------------------------------------------------------------------

    def _position(self, start: Mapping[str, Any]) -> Offsets:
        """From where the next batch reads, new partitions left out."""
        if start != NOTHING_YET:
            return BatchOffsets.from_log(start).end
        if self._begin is None:
            partitions = self._partitions({})
            self._begin = resolve_start(
                self._options, self._options.stream_start, self._ends, partitions, self._loss
            )
        return self._begin

    def _plan_from(
        self, start: Mapping[str, Any], admission: Admission
    ) -> tuple[Offsets, Offsets, BatchOffsets]:
        """From where the next batch reads, and what `_plan` says of it."""
        self._ids = BatchOffsets.from_log(start).ids
        tries = max(1, self._options.end_retries) + 1
        changed: _TopicChanged | None = None
        for attempt in range(tries):
            if attempt:
                self._ends.sleep(self._options.end_retry_ms / 1000)
            position = self._read_before = self._position(start)
            known = self._of_same_topics(position)
            try:
                return known, *self._plan(known, admission)
            except _TopicChanged as error:
                self._forget_edges()
                changed = error
        raise TopicsUnsettled(
            f"{changed} while a batch was planned, {tries} times: it is deleted and made "
            "again all the time, or brokers disagree about its id. Start the query again when they "
            "agree; fetchOffset.numRetries and fetchOffset.retryIntervalMs "
            "say for how long it waits for that"
        ) from changed

    def _forget_edges(self) -> None:
        """Where the query begins and ends was looked up in logs that are gone."""
        self._begin = self._target = None

    def _of_same_topics(self, position: Offsets) -> Offsets:
        """Without the topics that were deleted and recreated: those are new."""
        self._partitions(position)
        remade = self._recreated(self._ids)
        if remade:
            self._target = None  # it was an end of the old logs
        return {
            partition: position[partition]
            for partition in position
            if partition.topic not in remade
        }

    def _have_changed(self, topics: Collection[str]) -> bool:
        """Looks at these topics once more, after ends were asked for: those could be of other logs
        than were there before."""
        before = self._ends.ids
        known = [topic for topic in topics if topic in before]
        now = self._ends.topic_ids(known) if known else {}
        if all(now.get(topic) == before[topic] for topic in known):
            return False
        self._assigned_at = None
        return True

    def _recreated(self, ids: Mapping[str, str]) -> set[str]:
        """The topics that have another id now. A broker may not have heard of a change, or only of
        the one before: what it says is held against what it says a little later, and then against
        what the others say. As long as one of them says the old id, nothing was recreated."""
        recreated = self._with_other_ids(ids)
        for _ in range(self._options.end_retries):
            if self._are_confirmed(recreated):
                break
            self._ends.sleep(self._options.end_retry_ms / 1000)
            self._assigned_at = None
            self._partitions(self._read_before)
            recreated = self._with_other_ids(ids)
        said = [] if self._are_confirmed(recreated) else self._ends.ids_of_brokers(recreated)
        self._doubted = {
            topic: ids[topic]
            for topic in recreated
            if any(each.get(topic) == ids[topic] for each in said)
        }
        recreated -= self._doubted.keys()
        self._confirmed |= {(topic, self._ends.ids[topic]) for topic in recreated}
        self._loss.recreated(recreated)
        return recreated

    def _are_confirmed(self, topics: Collection[str]) -> bool:
        return {(topic, self._ends.ids[topic]) for topic in topics} <= self._confirmed

    def _with_other_ids(self, ids: Mapping[str, str]) -> set[str]:
        now = self._ends.ids
        return {topic for topic, was in ids.items() if now.get(topic, was) != was}

    def _partitions(self, known: Offsets) -> set[TopicPartition]:
        """What is there now, or was a moment ago."""
        now = self._clock.monotonic()
        if self._assigned_at is None or now - self._assigned_at >= _LOOK_AROUND_S:
            before = {*known, *self._read_before}
            self._assigned = self._ends.partitions(self._options.selection, before)
            self._assigned_at = now
        return self._assigned

    def _plan(self, known: Offsets, admission: Admission) -> tuple[Offsets, BatchOffsets]:
        """Up to where partitions can be read, and how much of it is the next batch."""
        try:
            return self._planned_at_once(known, admission)
        except (NoSuchPartition, TopicNotFound):  # between two questions it has gone
            self._assigned_at = None
            if self._target is not None:
                partitions = self._there({**dict.fromkeys(self._target, 0), **known})
                self._target = {
                    partition: self._target[partition] for partition in partitions & {*self._target}
                }
            return self._planned_at_once(known, admission)

    def _planned_at_once(
        self, known: Offsets, admission: Admission
    ) -> tuple[Offsets, BatchOffsets]:
        available = self._available(known)
        return available, self._batch(known, available, admission)

    def _available(self, known: Offsets) -> Offsets:
        """Up to where each partition can be read; never before where it was read."""
        if self._target is not None:
            return self._target
        available = self._not_before(known, self._ends.latest(self._there(known)))
        if self._takes_available:
            self._target = available
        return available

    def _there(self, known: Offsets) -> set[TopicPartition]:
        """What is there now, or was a moment ago; what is not any more is lost."""
        partitions = self._partitions(known)
        self._loss.gone(
            {partition: known[partition] for partition in known if partition not in partitions}
        )
        return partitions

    def _not_before(self, known: Offsets, latest: Offsets) -> Offsets:
        """An end before what was read is held against the log's own end, and asked for again: right
        after a change of leader it can be old."""
        ends, early = dict(latest), list(latest)
        for attempt in range(self._options.end_retries + 1):
            if attempt:
                self._ends.sleep(self._options.end_retry_ms / 1000)
                ends |= self._ends.latest(early)
            early = [partition for partition in early if ends[partition] < known.get(partition, 0)]
            log_ends = self._ends.log_ends(early)
            # Behind an open transaction there is nothing to be read, and nothing is lost.
            ends |= {
                partition: known[partition]
                for partition in early
                if log_ends[partition] >= known[partition]
            }
            early = [partition for partition in early if ends[partition] < known[partition]]
            if not early:
                return ends
        if self._have_changed({partition.topic for partition in early}):
            names = ", ".join(sorted({partition.topic for partition in early}))
            raise _TopicChanged(f"the id of topic {names} changed")
        self._loss.truncated(
            {partition: (known[partition], ends[partition]) for partition in early}
        )
        return ends

    # --- how much -------------------------------------------------------------------------------

    @property
    def _must_not_wait(self) -> bool:
        return self._takes_available or self._others_are_busy

    def _batch(self, known: Offsets, available: Offsets, admission: Admission) -> BatchOffsets:
        """The batch from `known` on, its beginning in each partition included."""
        added = self._ends.earliest(
            [partition for partition in available if partition not in known]
        )
        self._loss.began_late(added)
        begin = {partition: {**added, **known}[partition] for partition in available}
        new = spans(begin, available, {})
        for span in self._loss.clipped(new, self._ends.earliest([span.place for span in new])):
            begin[span.place] = span.start
        # A log that was cut goes on from where it ends now.
        begin = {
            partition: min(offset, available[partition]) for partition, offset in begin.items()
        }
        if self._must_wait_for_more(count_new(begin, available), admission):
            return BatchOffsets(known, known)
        end = available if admission.most is None else limited(admission.most, begin, available)
        topics = {partition.topic for partition in end}
        now = {**self._ends.ids, **self._doubted}
        ids = {topic: each for topic, each in now.items() if topic in topics}
        return BatchOffsets(begin, end, ids)

    def _must_wait_for_more(self, new: int, admission: Admission) -> bool:
        """Whether the least is not there, and the longest delay is not over."""
        now = self._clock.monotonic()
        if admission.least is None or self._takes_available:
            return False
        last, delay_s = self._last_batch_at, self._options.max_delay_ms / 1000
        if new < admission.least and last is not None and now - last < delay_s:
            return True
        self._last_batch_at = now
        return False
