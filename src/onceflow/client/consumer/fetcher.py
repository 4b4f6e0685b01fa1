"""Reads partitions ahead: fetches the next records while the application works on the last ones.

Each broker gets one Fetch request at a time for all partitions that it leads, as long as the buffer
has room for the response. With `isolation.level=read_committed`, the default, the fetcher returns
no record of an open or aborted transaction. It stores no positions in Kafka: its caller does.
A `Cluster` serves one fetcher: two would wait behind each other's requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from onceflow.client.codec import FetchAnswer
from onceflow.client.consumer.events import log_out_of_range, log_truncated
from onceflow.client.consumer.fetch_buffer import FetchBuffer
from onceflow.client.consumer.fetch_request import fetch, is_out_of_range, out_of_range, refusal
from onceflow.client.consumer.fetch_state import (
    NOWHERE,
    FetchCore,
    FetchEvent,
    FetchStage,
    PartitionFetchState,
)
from onceflow.client.consumer.metrics import FetchMetrics
from onceflow.client.errors import ClientError, LogTruncated, NoPosition
from onceflow.client.net import Cluster
from onceflow.client.offsets import epoch_ends, offsets_of
from onceflow.client.settings import EARLIEST, NONE, RAISE, FetcherSettings
from onceflow.client.types import EARLIEST as EARLIEST_TIME, LATEST as LATEST_TIME, PartitionEnds
from onceflow.errors import InvalidSetting
from onceflow.runtime import Rand, RealRand
from onceflow.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from onceflow.client.consumer.fetched import Record

RECORDS: Final = 500


class Fetcher:
    """Made for one event loop; closed by leaving `async with`, or by `close`.

    >>> from onceflow.client.net.address import parse_addresses
    >>> async def main() -> None:
    ...     async with Cluster(parse_addresses(bootstrap)) as cluster, Fetcher(cluster) as fetcher:
    ...         fetcher.assign({TopicPartition("orders", 0): 0})
    ...         print(await fetcher.next_table(timeout_s=0.1))
    >>> asyncio.run(main())
    None
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: FetcherSettings | None = None,
        *,
        rand: Rand | None = None,
        measured: FetchMetrics | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings or FetcherSettings()
        self._core = FetchCore(
            read_committed=self._settings.read_committed,
            most_queued_bytes=self._settings.fetch_queued_max_bytes,
            retry=cluster.settings.retry,
            rand=rand or RealRand(),
        )
        self._measured = measured
        self.buffer = FetchBuffer(
            self._core,
            measured,
            most_of_a_batch=self._settings.max_decompressed_batch_bytes,
        )
        self._conductor: asyncio.Task[None] | None = None
        self._errands: dict[int, asyncio.Task[None]] = {}
        self._search: asyncio.Task[None] | None = None
        """For leaders. A partition that has one does not wait for it: the broker asked may hang."""
        self._wake = asyncio.Event()
        self._arrived = asyncio.Event()
        self._is_interrupted = False
        self._is_closed = False
        self._crash: BaseException | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what is under way; the cluster stays as it is."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """Cancels all that is under way; a caller that waits for rows gets none."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        self.interrupt()

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        others = (each for each in (self._conductor, self._search) if each is not None)
        return [*self._errands.values(), *others]

    # --- what is read ---------------------------------------------------------------------------

    @property
    def assigned(self) -> list[TopicPartition]:
        """The partitions that are read, in no order that means anything."""
        return self._core.partitions

    def assign(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Reads these partitions, and no others, from these offsets on; None leaves the offset to
        `auto.offset.reset`."""
        for partition, offset in positions.items():
            _check_offset(partition, offset)
        self._core.assign(positions)
        self._wake.set()

    def add(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Reads these besides what is read already, which goes on undisturbed."""
        for partition, offset in positions.items():
            _check_offset(partition, offset)
        self._core.add(positions)
        self._wake.set()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these no more, and delivers nothing of them that was fetched already."""
        self._core.drop(partitions)

    def seek(self, partition: TopicPartition, offset: int | None) -> None:
        """Goes on at another offset; None leaves it to `auto.offset.reset`."""
        _check_offset(partition, offset)
        self._core.reading(partition).seek(NOWHERE if offset is None else offset)
        self._wake.set()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Delivers nothing of these until `resume`; what was fetched of them is kept."""
        for partition in partitions:
            self._core.pause(partition)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Goes on with what was paused."""
        for partition in partitions:
            self._core.reading(partition).is_paused = False
        self._wake.set()
        self._arrived.set()

    def position(self, partition: TopicPartition) -> int | None:
        """The offset behind the last that was delivered or passed over; None before it is known."""
        position = self._core.reading(partition).position
        return position if position >= 0 else None

    def ends(self, partition: TopicPartition) -> PartitionEnds | None:
        """Where the log began and ended when it was last fetched; None before that."""
        return self._core.reading(partition).ends

    def ahead(self, partition: TopicPartition) -> tuple[int, int]:
        """How many records were fetched and not delivered, and the offset behind all that was
        fetched."""
        return self.buffer.ahead(partition), self._core.reading(partition).filter.position

    @property
    def queued_bytes(self) -> int:
        """How much was fetched ahead, as it was sent."""
        return self._core.queued_bytes

    # --- what was read --------------------------------------------------------------------------

    async def next_table(self, timeout_s: float, *, max_rows: int | None = None) -> pa.Table | None:
        """What has come, as columns of `fetched.FETCHED_SCHEMA`, in order within each partition;
        None when nothing has within `timeout_s`. It is not delivered again.

        Raises what keeps a partition from being read; called again, it tries again.
        """
        if not await self._ready(timeout_s, max_rows):
            return None
        return self.buffer.table(max_rows)

    async def next_records(self, timeout_s: float, *, max_records: int = RECORDS) -> list[Record]:
        """As `next_table`, by record; empty when nothing has come."""
        if not await self._ready(timeout_s, max_records):
            return []
        return self.buffer.records(max_records)

    def interrupt(self) -> None:
        """The caller that waits for rows, now or next, gets none if none are there."""
        self._is_interrupted = True
        self._arrived.set()

    async def _ready(self, timeout_s: float, max_rows: int | None) -> bool:
        """Whether there are rows to deliver, within the time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        self._start()
        while True:
            self._arrived.clear()
            self._raise_crash()
            try:
                has_rows = self.buffer.fill(max_rows)
            finally:
                self._wake.set()
            if has_rows or self._is_interrupted:
                self._is_interrupted = False
                return has_rows
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return False

    # --- the work behind ------------------------------------------------------------------------

    def _start(self) -> None:
        if self._conductor is None and not self._is_closed:
            self._conductor = self._begin(self._conduct())

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._note_crash)
        return task

    def _note_crash(self, task: asyncio.Task[None]) -> None:
        """Raises an unexpected exception in the next call: it is a defect, and must not be lost."""
        if not task.cancelled() and task.exception() is not None:
            self._crash = self._crash or task.exception()
        self._arrived.set()

    def _raise_crash(self) -> None:
        if self._crash is not None:
            raise self._crash

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _conduct(self) -> None:
        """Sees to it that each broker with something to be asked for is being asked."""
        while True:
            self._wake.clear()
            self._core.make_room()
            leaders = {each.leader for each in self._core.due(self._now())}
            if self._core.needs_refresh or None in leaders:
                self._search = self._search or self._begin(self._find_leaders())
            for leader in leaders:
                if leader is not None and leader not in self._errands:
                    self._errands[leader] = self._begin(self._errand(leader))
            await self._record_iterator()

    async def _record_iterator(self) -> None:
        """Until something has happened, or a pause is over."""
        try:
            async with asyncio.timeout_at(self._core.next_time(self._now())):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _refresh(self) -> None:
        self._core.needs_refresh = False
        try:
            await self._cluster.refresh()
        except ClientError as error:
            for reading in self._core.due(self._now()):
                if reading.leader is None:
                    self._core.failed(reading, error, self._now())

    async def _find_leaders(self) -> None:
        try:
            if self._core.needs_refresh:
                await self._refresh()
            for reading in self._core.due(self._now()):
                if reading.leader is None:
                    await self._find_leader(reading)
        finally:
            self._search = None
            self._wake.set()

    async def _find_leader(self, reading: PartitionFetchState) -> None:
        try:
            reading.leader = await self._cluster.leader(reading.partition)
        except ClientError as error:
            self._core.failed(reading, error, self._now())
            self._arrived.set()
        else:
            self._wake.set()

    async def _errand(self, leader: int) -> None:
        """Asks one broker, one thing after the other, as long as there is something to ask."""
        try:
            while self._due_at(leader):
                await self._place(leader, self._due_at(leader, FetchStage.UNPLACED))
                await self._verify(leader, self._due_at(leader, FetchStage.DOUBTFUL))
                await self._fetch(leader, self._due_at(leader, FetchStage.PLACED))
        finally:
            self._errands.pop(leader, None)
            self._wake.set()
            self._arrived.set()

    def _due_at(self, leader: int, stage: FetchStage | None = None) -> list[PartitionFetchState]:
        return [
            each
            for each in self._core.due(self._now())
            if each.leader == leader and stage in (None, each.stage)
        ]

    async def _place(self, leader: int, readings: list[PartitionFetchState]) -> None:
        """Finds the positions of partitions that have none."""
        if not readings:
            return
        policy = self._settings.auto_offset_reset
        if policy == NONE:
            for reading in readings:
                message = f"there is no position to read {reading.partition} from"
                self._core.fail(reading, NoPosition(message), self._now())
            return
        turns = [each.turn for each in readings]
        time = EARLIEST_TIME if policy == EARLIEST else LATEST_TIME
        wanted = {each.partition: time for each in readings}
        try:
            found = await offsets_of(self._cluster, leader, wanted, self._settings.read_committed)
        except ClientError as error:
            self._all_failed(readings, turns, error)
            return
        for reading, turn in zip(readings, turns, strict=True):
            if self._core.is_current(reading.partition, turn):
                reading.seek(found[reading.partition].offset)

    async def _verify(self, leader: int, readings: list[PartitionFetchState]) -> None:
        """After a leader may have changed: is what was read still in the log?"""
        if not readings:
            return
        turns = [each.turn for each in readings]
        epochs = {each.partition: each.filter.leader_epoch for each in readings}
        try:
            found = await epoch_ends(self._cluster, leader, epochs)
        except ClientError as error:
            self._all_failed(readings, turns, error)
            return
        for reading, turn in zip(readings, turns, strict=True):
            if self._core.is_current(reading.partition, turn):
                end = found.get(reading.partition)
                self._judge(reading, end.end_offset if end is not None else -1)

    def _judge(self, reading: PartitionFetchState, end_offset: int) -> None:
        """`end_offset` is where the leader's log has the last of what was read; -1: not known."""
        if end_offset < 0 or end_offset >= reading.filter.position:
            reading.happened(FetchEvent.FOUND_PLACE)
        elif end_offset >= reading.position:  # only what was not handed out yet is gone
            reading.seek(reading.position)
        else:
            error = LogTruncated.of(reading.partition, reading.position, end_offset)
            if self._settings.on_log_truncation == RAISE:
                self._core.fail_now(reading.partition, error)
            else:
                log_truncated(reading.partition, end_offset, error)
                reading.seek(end_offset)

    def _all_failed(
        self, readings: list[PartitionFetchState], turns: list[int], error: ClientError
    ) -> None:
        for reading, turn in zip(readings, turns, strict=True):
            if self._core.is_current(reading.partition, turn):
                self._core.failed(reading, error, self._now())

    async def _fetch(self, leader: int, readings: list[PartitionFetchState]) -> None:
        if not readings:
            return
        turns = {each.partition: each.turn for each in readings}
        try:
            answers = await fetch(
                self._cluster,
                leader,
                [(each.partition, each.filter.position) for each in readings],
                self._settings,
                max_bytes=max(1, min(self._settings.fetch_max_bytes, self._core.room)),
                # Set after the next request is sent, so that the broker works meanwhile.
                when_sent=self._arrived.set,
                measured=self._measured,
            )
        except ClientError as error:
            self._all_failed(readings, list(turns.values()), error)
            return
        full = []
        for answer in answers:
            turn = turns.get(answer.partition)
            if turn is None or not self._core.is_current(answer.partition, turn):
                continue
            if answer.error:
                await self._refused(self._core.reading(answer.partition), answer)
            elif self._core.arrived(turn, answer, self._now()):
                full.append(answer.partition)
        self._core.rotate(full)

    async def _refused(self, reading: PartitionFetchState, answer: FetchAnswer) -> None:
        if not is_out_of_range(answer):
            self._core.failed(reading, refusal(answer), self._now())
        elif self._settings.auto_offset_reset != NONE:
            policy = self._settings.auto_offset_reset
            log_out_of_range(reading.partition, reading.filter.position, policy)
            reading.happened(FetchEvent.LOST_PLACE)
        else:
            await self._out_of_range(reading)

    async def _out_of_range(self, reading: PartitionFetchState) -> None:
        turn = reading.turn
        partition = reading.partition
        try:
            problem = await out_of_range(self._cluster, partition, reading.filter.position)
        except ClientError as error:
            self._all_failed([reading], [turn], error)
            return
        if self._core.is_current(partition, turn):
            self._core.fail(reading, problem, self._now())


def _check_offset(partition: TopicPartition, offset: int | None) -> None:
    if offset is not None and offset < 0:
        raise InvalidSetting(
            f"offset {offset} for partition {partition}: give 0 or more, or None for "
            "auto.offset.reset"
        )
