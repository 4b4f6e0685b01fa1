"""Where partitions are read from: where their group has come to, else where `auto.offset.reset`
says; and back to there.

Found in the background for partitions that were just given to this consumer; until then they are
not read. What goes wrong is raised once by `check`, and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from onceflow.client.cluster import Cluster
from onceflow.client.consumer_settings import ConsumerSettings
from onceflow.client.errors import ClientError
from onceflow.client.fetch_errors import NotAssigned
from onceflow.client.fetch_settings import EARLIEST, NONE
from onceflow.client.fetcher import Fetcher
from onceflow.client.model import EARLIEST as EARLIEST_TIME
from onceflow.client.model import LATEST as LATEST_TIME
from onceflow.client.model import TopicPartition
from onceflow.client.offsets import list_offsets
from onceflow.client.reading_events import told_begins, told_rewound
from onceflow.client.txn_requests import OffsetToCommit

Committed: TypeAlias = Callable[
    [Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetToCommit]]
]


class Positions:
    """Of the partitions that this consumer has. `committed` asks the group, `on_news` is called
    when something was found."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        fetcher: Fetcher,
        committed: Committed,
        on_news: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._fetcher = fetcher
        self._committed = committed
        self._on_news = on_news
        self._starts: dict[TopicPartition, int] = {}
        """Where reading began."""
        self._unplaced: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._placing: asyncio.Task[None] | None = None
        self.on_asked: Callable[[Collection[TopicPartition], Collection[TopicPartition]], None] = (
            _nothing
        )
        """Is told where the group has an offset, and where it has none, before that is made up for
        by `auto.offset.reset`; what it raises is raised."""
        self._problem: ClientError | None = None

    @property
    def assigned(self) -> set[TopicPartition]:
        return {*self._fetcher.assigned, *self._unplaced}

    @property
    def paused(self) -> set[TopicPartition]:
        return set(self._paused)

    # --- who is read ----------------------------------------------------------------------------

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these besides the others, once it is known from where."""
        self._unplaced.update(partitions)
        self._place()

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these no more."""
        gone = set(partitions)
        self._fetcher.drop(gone)
        self._unplaced -= gone
        self._paused -= gone
        for partition in gone:
            self._starts.pop(partition, None)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Goes on at that offset."""
        self.require([partition])
        self._put({partition: offset})

    def _put(self, positions: Mapping[TopicPartition, int]) -> None:
        """Partitions that are assigned; those that are not read yet are from now on."""
        self._starts.update(positions)
        added: dict[TopicPartition, int | None] = {}
        for partition, offset in positions.items():
            if partition in self._unplaced:
                added[partition] = offset
            else:
                self._fetcher.seek(partition, offset)
        self._add(added)

    def _add(self, positions: Mapping[TopicPartition, int | None]) -> None:
        self._unplaced -= positions.keys()
        self._fetcher.add(positions)
        self._fetcher.pause(self._paused & positions.keys())

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.require(partitions)
        self._paused.update(partitions)
        self._fetcher.pause(set(partitions) - self._unplaced)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.require(partitions)
        self._paused.difference_update(partitions)
        self._fetcher.resume(set(partitions) - self._unplaced)

    def require(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises `NotAssigned` for the first that is not."""
        assigned = self.assigned
        for partition in partitions:
            if partition not in assigned:
                raise NotAssigned(f"partition {partition} is not assigned to this consumer")

    def delivered(self) -> dict[TopicPartition, int]:
        """Behind what was taken from the fetcher, of all partitions of which that is known."""
        positions = {each: self._fetcher.position(each) for each in self._fetcher.assigned}
        return {each: offset for each, offset in positions.items() if offset is not None}

    # --- from where -----------------------------------------------------------------------------

    def check(self) -> None:
        """Raises what went wrong since; then it is tried again."""
        problem, self._problem = self._problem, None
        self._place()
        if problem is not None:
            raise problem

    async def placed(self, partitions: Collection[TopicPartition]) -> None:
        """Waits until it is known where these are read from; raises why that is not to be known,
        within `default.api.timeout.ms`."""
        while not self._unplaced.isdisjoint(partitions):
            self.check()
            if self._placing is not None:
                await asyncio.wait([self._placing])

    def _place(self) -> None:
        if self._unplaced and self._placing is None:
            self._placing = asyncio.get_running_loop().create_task(self._find())
            self._placing.add_done_callback(self._found)

    def _found(self, task: asyncio.Task[None]) -> None:
        self._placing = None
        if not task.cancelled():
            error = task.exception()
            if isinstance(error, ClientError):
                self._problem = error
            elif error is not None:
                raise error
        self._on_news()

    async def _find(self) -> None:
        while self._unplaced:
            wanted = sorted(self._unplaced)
            found = await self.beginnings(wanted)
            # Others may have been taken away, or been given a place, meanwhile.
            still = {each for each in wanted if each in self._unplaced}
            self._put({each: offset for each, offset in found.items() if each in still})
            # Those without a place, by auto.offset.reset=none, are the fetcher's to complain of.
            self._add(dict.fromkeys(still - found.keys()))

    async def beginnings(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group goes on, or where `auto.offset.reset` says; nothing when it says
        nothing."""
        found = {each: at.offset for each, at in (await self._committed(partitions)).items()}
        missing = [each for each in partitions if each not in found]
        self.on_asked(found.keys(), missing)
        policy = self._settings.auto_offset_reset
        if missing and policy != NONE:
            time = EARLIEST_TIME if policy == EARLIEST else LATEST_TIME
            told_begins(missing, policy)
            found |= await self.at_time(dict.fromkeys(missing, time))
        return found

    async def at_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The first offsets that are not older; the end where there is none."""
        is_committed = self._settings.read_committed
        offsets = await list_offsets(self._cluster, times, read_committed=is_committed)
        found = {each: at.offset for each, at in offsets.items() if at.offset >= 0}
        later = [each for each in times if each not in found]
        if later:
            found |= await self.at_time(dict.fromkeys(later, LATEST_TIME))
        return found

    async def rewind(self, partitions: Sequence[TopicPartition]) -> None:
        """Back to what was committed; where nothing was, to where reading began."""
        self.require(partitions)
        found = await self._committed(partitions)
        back = dict(self._starts)
        back |= {each: at.offset for each, at in found.items()}
        assigned = self.assigned
        places = {each: back[each] for each in partitions if each in back and each in assigned}
        told_rewound(places)
        self._put(places)

    async def close(self) -> None:
        if self._placing is not None:
            self._placing.cancel()
            await asyncio.gather(self._placing, return_exceptions=True)


def _nothing(found: Collection[TopicPartition], missing: Collection[TopicPartition]) -> None:
    """A group without an offset is a new one, for all that a consumer knows."""
