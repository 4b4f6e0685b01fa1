"""The state of a fetcher's partitions, without a clock and without a network.

Each partition has two positions: how far the fetcher has fetched, and how far the application has
got records. What lies between is queued. A seek starts a new turn: responses and queued records of
an older turn are dropped. An error waits in the queue behind the records fetched before it; once it
has been raised, the partition is fetched again from where the application is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from onceflow.client.codec import FetchAnswer
from onceflow.client.consumer.events import log_fetch_retry
from onceflow.client.consumer.isolation import NO_EPOCH, PartitionFilter
from onceflow.client.errors import Action, ClientError, NotAssigned, RecordsUnreadable, action_for
from onceflow.client.events import Recurring
from onceflow.client.net import Backoff, RetryPolicy
from onceflow.client.types import PartitionEnds
from onceflow.errors import OnceflowError
from onceflow.records import StoredBatch, iter_stored
from onceflow.runtime import Rand
from onceflow.types import TopicPartition

_RETRIED: Final = (Action.RETRY, Action.REFRESH)
NOWHERE: Final = -1


class FetchStage(Enum):
    """What a partition needs next."""

    UNPLACED = "a position, by auto.offset.reset"
    DOUBTFUL = "to know whether what was read is still there"
    PLACED = "to be fetched"


class FetchEvent(Enum):
    """What can happen to a partition."""

    LOST_PLACE = "there is no position, or the log does not hold it"
    LOST_LEADER = "the leader may be another one by now"
    FOUND_PLACE = "the position is known to be good"


STAGES: Final[Mapping[tuple[FetchStage, FetchEvent], FetchStage]] = {
    (FetchStage.UNPLACED, FetchEvent.LOST_PLACE): FetchStage.UNPLACED,
    (FetchStage.UNPLACED, FetchEvent.LOST_LEADER): FetchStage.UNPLACED,
    (FetchStage.UNPLACED, FetchEvent.FOUND_PLACE): FetchStage.PLACED,
    (FetchStage.DOUBTFUL, FetchEvent.LOST_PLACE): FetchStage.UNPLACED,
    (FetchStage.DOUBTFUL, FetchEvent.LOST_LEADER): FetchStage.DOUBTFUL,
    (FetchStage.DOUBTFUL, FetchEvent.FOUND_PLACE): FetchStage.PLACED,
    (FetchStage.PLACED, FetchEvent.LOST_PLACE): FetchStage.UNPLACED,
    (FetchStage.PLACED, FetchEvent.LOST_LEADER): FetchStage.DOUBTFUL,
    (FetchStage.PLACED, FetchEvent.FOUND_PLACE): FetchStage.PLACED,
}


class Chunk(NamedTuple):
    """The batches of one partition in one Fetch response. The first may begin before `first`."""

    partition: TopicPartition
    turn: int
    batches: list[StoredBatch]
    first: int
    next_offset: int
    size: int
    error: ClientError | None = None


class PartitionFetchState:
    """The state of one partition."""

    __slots__ = (
        "backoff",
        "ends",
        "failing_since",
        "filter",
        "has_failed",
        "is_paused",
        "leader",
        "not_before",
        "partition",
        "position",
        "stage",
        "turn",
    )

    def __init__(
        self, partition: TopicPartition, reader: PartitionFilter, backoff: Backoff
    ) -> None:
        self.partition = partition
        self.filter = reader
        self.backoff = backoff
        self.position = reader.position
        """The offset of the next record for the application."""
        self.stage = FetchStage.PLACED if reader.position >= 0 else FetchStage.UNPLACED
        self.turn = 0
        self.is_paused = False
        self.leader: int | None = None
        """None until it was looked up."""
        self.has_failed = False
        """Whether an error is queued: nothing is fetched until it has been raised."""
        self.not_before = 0.0
        self.failing_since: float | None = None
        self.ends: PartitionEnds | None = None

    def happened(self, event: FetchEvent) -> None:
        self.stage = STAGES[self.stage, event]
        if event is FetchEvent.LOST_LEADER:
            self.leader = None
        if self.stage is FetchStage.DOUBTFUL and self.filter.leader_epoch == NO_EPOCH:
            self.stage = FetchStage.PLACED  # no record was read that a new leader could lack

    def seek(self, offset: int, *, rests: bool = False) -> None:
        """Starts a new turn at `offset`; `NOWHERE` means that the offset has yet to be looked up.
        `rests`: keep the pause that follows an error."""
        self.turn += 1
        self.filter.seek(offset)
        self.position = offset
        self.has_failed = False
        if rests:
            self.failing_since = None
        else:
            self.went_well()
        self.happened(FetchEvent.FOUND_PLACE if offset >= 0 else FetchEvent.LOST_PLACE)

    def went_well(self) -> None:
        self.failing_since = None
        self.not_before = 0.0
        self.backoff.reset()

    def pause(self, now: float) -> float:
        """Starts the pause before the next request, and returns its length. There is one also when
        the error is raised: an application that polls again at once would send requests in a
        loop."""
        pause = self.backoff.next_s()
        self.not_before = now + pause
        return pause

    def is_due(self, now: float) -> bool:
        if self.stage is FetchStage.UNPLACED and self.filter.position > self.position:
            return False  # a seek would drop records that the application has yet to get
        return not (self.is_paused or self.has_failed) and now >= self.not_before


class FetchCore:
    """All partitions of one fetcher, and the queue of fetched batches."""

    def __init__(
        self, *, read_committed: bool, most_queued_bytes: int, retry: RetryPolicy, rand: Rand
    ) -> None:
        self._read_committed = read_committed
        self._most_queued_bytes = most_queued_bytes
        self._retry = retry
        self._rand = rand
        self._readings: dict[TopicPartition, PartitionFetchState] = {}
        self._queue: deque[Chunk] = deque()
        self._turns = 0
        self._recurring = Recurring()
        self.queued_bytes = 0
        self.needs_refresh = False
        self._may_hold_paused = False
        """Whether the queue may hold batches of a paused partition; saves a search through it."""

    # --- who reads what -------------------------------------------------------------------------

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._readings)

    def assign(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Reads only these partitions from now on; None means that the position has yet to be
        looked up. To keep a partition, pass its position."""
        self._readings = {}
        self._queue.clear()
        self.queued_bytes = 0
        self.add(positions)

    def add(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Reads these partitions too; one that is read already starts at its new position."""
        self._turns += 1
        for partition, offset in positions.items():
            reader = PartitionFilter(
                NOWHERE if offset is None else offset, read_committed=self._read_committed
            )
            reading = PartitionFetchState(partition, reader, Backoff(self._retry, self._rand))
            # Above every turn that was ever in use: a late response to an earlier assignment of
            # this partition must not pass for one of this assignment.
            reading.turn = self._turns << 32
            self._readings[partition] = reading

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops reading these partitions; `take` drops what is still queued of them."""
        for partition in partitions:
            self._readings.pop(partition, None)

    def pause(self, partition: TopicPartition) -> None:
        self.reading(partition).is_paused = True
        self._may_hold_paused = True

    def reading(self, partition: TopicPartition) -> PartitionFetchState:
        try:
            return self._readings[partition]
        except KeyError:
            raise NotAssigned(f"partition {partition} is not assigned to this reader") from None

    def is_current(self, partition: TopicPartition, turn: int) -> bool:
        """Whether a response or a queued batch of that turn still counts."""
        reading = self._readings.get(partition)
        return reading is not None and reading.turn == turn

    # --- what to ask for ------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes that may still be fetched ahead."""
        return self._most_queued_bytes - self.queued_bytes

    def make_room(self) -> None:
        """Drops the queued batches of paused partitions when the queue is full; they are fetched
        again later. Otherwise they would fill it, and the other partitions would starve."""
        if self.room > 0 or not self._may_hold_paused:
            return
        self._may_hold_paused = False
        for partition in {chunk.partition for chunk in self._queue}:
            reading = self._readings.get(partition)
            if reading is not None and reading.is_paused:
                self.retake(partition)
        kept = [each for each in self._queue if self.is_current(each.partition, each.turn)]
        self._queue = deque(kept)
        self.queued_bytes = sum(chunk.size for chunk in kept)

    def due(self, now: float) -> list[PartitionFetchState]:
        """The partitions to fetch now; none while the queue is full."""
        if self.room <= 0:
            return []
        return [each for each in self._readings.values() if each.is_due(now)]

    def next_time(self, now: float) -> float | None:
        """When the next partition's pause ends."""
        times = [each.not_before for each in self._readings.values() if each.not_before > now]
        return min(times, default=None)

    def rotate(self, partitions: Iterable[TopicPartition]) -> None:
        """Puts partitions that returned records behind the others. Brokers fill a response in the
        order of the request, so the last partitions would starve otherwise."""
        for partition in partitions:
            if partition in self._readings:
                self._readings[partition] = self._readings.pop(partition)

    # --- what came ------------------------------------------------------------------------------

    def arrived(self, turn: int, answer: FetchAnswer, now: float) -> bool:
        """Queues the batches of a response that has no error; whether it had any."""
        if not self.is_current(answer.partition, turn):
            return False
        reading = self._readings[answer.partition]
        reading.went_well()
        reading.ends = PartitionEnds(
            answer.log_start_offset, answer.high_watermark, answer.last_stable_offset
        )
        if not answer.records:
            return False
        first = reading.filter.position
        reading.filter.begin(answer.aborted)
        batches: list[StoredBatch] = []
        error: OnceflowError | None = None
        try:
            for batch in reading.filter.visible(iter_stored(answer.records)):
                batches.append(batch)  # one by one, to keep the batches in front of a damaged one
        except OnceflowError as damage:
            error = damage
        position = reading.filter.position
        size = len(answer.records)
        self._may_hold_paused = self._may_hold_paused or reading.is_paused
        self._push(Chunk(answer.partition, turn, batches, first, position, size))
        if error is None and position == first:
            error = RecordsUnreadable("not one whole batch was sent")
        if error is not None:
            self.fail(reading, RecordsUnreadable.of(answer.partition, position, error), now)
        return True

    def failed(self, reading: PartitionFetchState, error: ClientError, now: float) -> None:
        """A request has failed: the partition is fetched again after a pause, or the error is
        queued for the application."""
        action = action_for(error)
        if action is Action.REFRESH:
            self.needs_refresh = True
            reading.happened(FetchEvent.LOST_LEADER)
        if reading.failing_since is None:
            reading.failing_since = now
        pause = reading.pause(now)
        is_late = now + pause > reading.failing_since + self._retry.total_s
        if action in _RETRIED and not is_late:
            log_fetch_retry(self._recurring, reading.partition, error, pause, now)
        else:
            self._queue_error(reading, error)

    def fail(self, reading: PartitionFetchState, error: ClientError, now: float) -> None:
        """Queues an error behind the records fetched before it."""
        reading.pause(now)
        self._queue_error(reading, error)

    def _queue_error(self, reading: PartitionFetchState, error: ClientError) -> None:
        reading.has_failed = True
        at = reading.filter.position
        self._push(Chunk(reading.partition, reading.turn, [], at, at, 0, error))

    def fail_now(self, partition: TopicPartition, error: ClientError) -> None:
        """Queues an error, and drops the partition's queued records."""
        self.retake(partition)
        self._queue_error(self._readings[partition], error)

    def _push(self, chunk: Chunk) -> None:
        self._queue.append(chunk)
        self.queued_bytes += chunk.size

    def queued(self, partition: TopicPartition) -> list[Chunk]:
        """A partition's queued batches. Other threads may call this: it reads a copy."""
        mine = (chunk for chunk in tuple(self._queue) if chunk.partition == partition)
        return [chunk for chunk in mine if self.is_current(partition, chunk.turn)]

    @property
    def has_error(self) -> bool:
        """Whether an error is queued."""
        return any(chunk.error is not None for chunk in self._queue)

    # --- what is delivered ----------------------------------------------------------------------

    def take(self, most_bytes: int) -> list[Chunk]:
        """The next chunks, about `most_bytes` of them; positions move with `delivered`. Raises an
        error when it comes first: records in front of it are returned before it is raised."""
        taken: list[Chunk] = []
        kept: deque[Chunk] = deque()
        size = 0
        while self._queue and size < most_bytes:
            chunk = self._queue.popleft()
            if not self.is_current(chunk.partition, chunk.turn):
                self.queued_bytes -= chunk.size
            elif self._readings[chunk.partition].is_paused or (chunk.error and taken):
                kept.append(chunk)
                if chunk.error and taken:
                    break
            elif chunk.error is not None:
                self._queue.extendleft(reversed(kept))
                self.retake(chunk.partition, rests=True)
                raise chunk.error
            else:
                self.queued_bytes -= chunk.size
                size += chunk.size
                taken.append(chunk)
        self._queue.extendleft(reversed(kept))
        return taken

    def put_back(self, chunks: list[Chunk]) -> None:
        """Puts taken chunks back to the front of the queue."""
        self._queue.extendleft(reversed(chunks))
        self.queued_bytes += sum(chunk.size for chunk in chunks)

    def retake(self, partition: TopicPartition, *, rests: bool = False) -> None:
        """Drops a partition's queued records; they are fetched again from its position."""
        reading = self._readings[partition]
        stage, epoch = reading.stage, reading.filter.leader_epoch
        reading.seek(reading.position, rests=rests)
        reading.filter.leader_epoch = epoch
        if stage is FetchStage.DOUBTFUL:
            reading.happened(FetchEvent.LOST_LEADER)

    def delivered(self, partition: TopicPartition, turn: int, next_offset: int) -> None:
        """The application has got all records below `next_offset`."""
        if self.is_current(partition, turn):
            self._readings[partition].position = next_offset
