"""Where partitions are read from: where their group has come to, else where `auto.offset.reset`
says; and back to there.

Found in the background for partitions that were just given to this consumer; until then they are
not read. What goes wrong is raised once by `check`, and tried again; one partition of which nobody
can tell keeps no other waiting.

Whatever is asked for a partition carries a token: of the assignment for which it was asked, and of
the last seek in it. `_put`, where answers become positions, drops those whose token is over: a
partition that has left and come back begins where its group is now, not where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, NamedTuple, TypeAlias

from onceflow.client.codec import OffsetToCommit
from onceflow.client.consumer.events import log_reset_to_policy, log_rewound
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.errors import ClientError, ConsumerClosed, NotAssigned
from onceflow.client.group import Committed
from onceflow.client.net import Backoff, Cluster, retrying_each
from onceflow.client.offsets import list_offsets, try_ends
from onceflow.client.settings import EARLIEST, NONE, ConsumerSettings
from onceflow.client.types import EARLIEST as EARLIEST_TIME, LATEST as LATEST_TIME
from onceflow.runtime import Rand
from onceflow.types import TopicPartition

AskGroup: TypeAlias = Callable[
    [Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, Committed]]
]
"""What is committed of each of them, asked once."""


class _Place:
    """A partition for as long as it is assigned; given anew, it has a new one."""

    __slots__ = (
        "asker",
        "backoff",
        "is_paused",
        "is_read",
        "is_resting",
        "problem",
        "seeks",
        "start",
    )

    def __init__(self, backoff: Backoff) -> None:
        self.seeks = 0
        """How often its position was set."""
        self.start: int | None = None
        """Where reading began, or where the user has put it."""
        self.is_read = False
        """Whether the fetcher has it: from when its first position is known."""
        self.is_paused = False
        self.asker: asyncio.Task[None] | None = None
        """Who finds out where to begin."""
        self.problem: BaseException | None = None
        """Why that came to nothing, until it has been raised."""
        self.backoff = backoff
        self.is_resting = False
        """It was raised a moment ago, and is not asked for again yet."""


class _Token(NamedTuple):
    """For what something was asked."""

    place: _Place
    seeks: int


Tokens: TypeAlias = Mapping[TopicPartition, _Token]


class Positions:
    """Of the partitions that this consumer has. `ask_group` is None without a group, `on_news` is
    called when something was found."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        fetcher: Fetcher,
        rand: Rand,
        ask_group: AskGroup | None,
        on_news: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._fetcher = fetcher
        self._rand = rand
        self._ask_group = ask_group
        self._on_news = on_news
        self._places: dict[TopicPartition, _Place] = {}
        self._unplaced: dict[TopicPartition, _Place] = {}
        """Those of them that are not read yet: each poll looks at these, and not at all."""
        self._resting: set[asyncio.TimerHandle] = set()
        self._askers: dict[asyncio.Task[None], Tokens] = {}
        self.on_asked: Callable[[Collection[TopicPartition], Collection[TopicPartition]], None] = (
            _nothing
        )
        """Is told where the group has an offset, and where it has none, before that is made up for
        by `auto.offset.reset`; what it raises is raised."""
        self._is_closed = False
        self._changed = asyncio.Event()
        """Something is read, is gone, or went wrong."""

    @property
    def assigned(self) -> set[TopicPartition]:
        return set(self._places)

    @property
    def paused(self) -> set[TopicPartition]:
        return {partition for partition, place in self._places.items() if place.is_paused}

    # --- who is read ----------------------------------------------------------------------------

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these besides the others, once it is known from where."""
        retry = self._cluster.settings.retry
        for partition in partitions:
            place = _Place(Backoff(retry, self._rand))
            self._places[partition] = self._unplaced[partition] = place
        self._ask()

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these no more."""
        gone = set(partitions)
        self._fetcher.drop(gone)
        for partition in gone:
            self._places.pop(partition, None)
            self._unplaced.pop(partition, None)
        for asker, tokens in self._askers.items():
            if not self._unread(tokens):
                asker.cancel()
        self._changed.set()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Goes on at that offset."""
        self.require([partition])
        self._move(partition, offset, is_start=True)

    def go_back(self, offsets: Mapping[TopicPartition, int]) -> None:
        """What lies behind these was not handed out after all, as far as it is assigned. Where
        reading began is what it was."""
        for partition, offset in offsets.items():
            if partition in self._places:
                self._move(partition, offset, is_start=False)

    def take_back(self, tokens: Tokens, firsts: Mapping[TopicPartition, int]) -> None:
        """The same, unless it was put elsewhere or given anew since."""
        self._put(tokens, firsts, is_start=False)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._set_paused(partitions, True)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Collection[TopicPartition], is_paused: bool) -> None:
        self.require(partitions)
        for partition in partitions:
            self._places[partition].is_paused = is_paused
        read = [each for each in partitions if self._places[each].is_read]
        (self._fetcher.pause if is_paused else self._fetcher.resume)(read)

    def require(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises `NotAssigned` for the first that is not."""
        for partition in partitions:
            if partition not in self._places:
                raise NotAssigned(f"partition {partition} is not assigned to this consumer")

    def delivered(self) -> dict[TopicPartition, int]:
        """Behind what was taken from the fetcher, of all partitions of which that is known."""
        positions = {each: self._fetcher.position(each) for each in self._fetcher.assigned}
        return {each: offset for each, offset in positions.items() if offset is not None}

    # --- tokens ---------------------------------------------------------------------------------

    def tokens(self, partitions: Iterable[TopicPartition]) -> Tokens:
        """To be taken before something is asked."""
        places = {each: self._places[each] for each in partitions}
        return {each: _Token(place, place.seeks) for each, place in places.items()}

    def _current(self, tokens: Tokens) -> set[TopicPartition]:
        """Those for which an answer still counts."""
        places = self._places
        return {
            each
            for each, (place, seeks) in tokens.items()
            if places.get(each) is place and place.seeks == seeks
        }

    def _put(
        self, tokens: Tokens, offsets: Mapping[TopicPartition, int], *, is_start: bool
    ) -> None:
        """Answers become positions, here and nowhere else."""
        for partition in self._current(tokens) & offsets.keys():
            self._move(partition, offsets[partition], is_start=is_start)

    def _move(self, partition: TopicPartition, offset: int, *, is_start: bool) -> None:
        place = self._places[partition]
        place.seeks += 1
        if is_start:
            place.start = offset
        if place.is_read:
            self._fetcher.seek(partition, offset)
        else:
            self._read(partition, offset)

    def _read(self, partition: TopicPartition, offset: int | None) -> None:
        place = self._places[partition]
        place.is_read = True
        self._unplaced.pop(partition, None)
        self._changed.set()
        self._fetcher.add({partition: offset})
        if place.is_paused:
            self._fetcher.pause([partition])

    # --- from where -----------------------------------------------------------------------------

    @property
    def has_problem(self) -> bool:
        """Whether `check` raises."""
        # Of a thousand partitions that are read, as most of the time, none is looked at.
        return any(place.problem is not None for place in self._unplaced.values())

    def check(self) -> None:
        """Raises what went wrong since; then it is tried again."""
        self._raise_problem(self._unplaced)

    def _raise_problem(self, partitions: Iterable[TopicPartition]) -> None:
        places = map(self._unplaced.get, partitions)
        failed = [each for each in places if each is not None and each.problem is not None]
        if not failed:
            return
        problem = failed[0].problem
        for place in failed:
            place.problem = None
            place.is_resting = True
        pause_s = max(place.backoff.next_s() for place in failed)

        def ask_again() -> None:
            self._resting.discard(timer)
            for place in failed:
                place.is_resting = False
            self._ask()

        # After a pause, or whoever polls again at once does nothing but ask and fail.
        timer = asyncio.get_running_loop().call_later(pause_s, ask_again)
        self._resting.add(timer)
        if problem is not None:
            raise problem

    async def placed(self, partitions: Collection[TopicPartition]) -> None:
        """Waits until it is known where these are read from, or they are gone; raises why that is
        not to be known, within `default.api.timeout.ms`."""
        while any(
            place is not None and not place.is_read for place in map(self._places.get, partitions)
        ):
            if self._is_closed:
                raise ConsumerClosed("the consumer was closed meanwhile")
            self._raise_problem(partitions)
            self._changed.clear()
            await self._changed.wait()

    def _ask(self) -> None:
        """For all that are not read, and for which nobody asks."""
        unasked = [
            partition
            for partition, place in self._unplaced.items()
            if place.asker is None and place.problem is None and not place.is_resting
        ]
        if not unasked:
            return
        if self._ask_group is None:
            self._ask_by_reset(unasked)
        else:
            self._start(self._find(self.tokens(unasked), self._ask_group), unasked)

    def _start(
        self, work: Coroutine[Any, Any, None], partitions: Collection[TopicPartition]
    ) -> None:
        """Asks in the background, on behalf of these."""
        if self._is_closed:
            work.close()
            return
        asker = asyncio.get_running_loop().create_task(work)
        self._askers[asker] = self.tokens(partitions)
        for partition in partitions:
            self._places[partition].asker = asker
        asker.add_done_callback(self._asked)

    def _asked(self, asker: asyncio.Task[None]) -> None:
        problem = None if asker.cancelled() else asker.exception()
        for place, _ in self._askers.pop(asker).values():
            if place.asker is asker:
                place.asker = None
                if not place.is_read:
                    place.problem = problem
        self._changed.set()
        self._on_news()

    def _unread(self, tokens: Tokens) -> list[TopicPartition]:
        """Those of which it is still to be found out where to begin."""
        return sorted(each for each in self._current(tokens) if not tokens[each].place.is_read)

    async def _find(self, tokens: Tokens, ask_group: AskGroup) -> None:
        """Where the group goes on; where it has nothing committed, by `auto.offset.reset`."""
        missing: set[TopicPartition] = set()

        async def attempt(
            partitions: list[TopicPartition],
        ) -> Mapping[TopicPartition, ClientError]:
            answers = await ask_group(partitions)
            # Only those that count: whoever is told of the others would take the past for now.
            answers = {each: answers[each] for each in self._current(tokens) & answers.keys()}
            found = {each: at for each, at in answers.items() if isinstance(at, OffsetToCommit)}
            nowhere = [each for each, at in answers.items() if at is None]
            self.on_asked(found.keys(), nowhere)
            offsets = {each: at.offset for each, at in found.items()}
            self._put(tokens, offsets, is_start=True)
            missing.update(nowhere)
            self._ask_by_reset(nowhere)
            return {each: at for each, at in answers.items() if isinstance(at, ClientError)}

        await self._retrying(
            attempt, lambda: [each for each in self._unread(tokens) if each not in missing]
        )

    def _ask_by_reset(self, partitions: Collection[TopicPartition]) -> None:
        """Each leader for itself: one that does not answer keeps no other waiting."""
        policy = self._settings.auto_offset_reset
        if policy == NONE:  # the fetcher's to complain of
            for partition in partitions:
                self._read(partition, None)
            return
        if partitions:
            log_reset_to_policy(partitions, policy)
        by_leader: dict[int | None, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            by_leader.setdefault(self._cluster.known_leader(partition), []).append(partition)
        time = EARLIEST_TIME if policy == EARLIEST else LATEST_TIME
        for led in by_leader.values():
            self._start(self._find_end(self.tokens(led), time), led)

    async def _find_end(self, tokens: Tokens, time: int) -> None:
        def found(offsets: Mapping[TopicPartition, int]) -> None:
            self._put(tokens, offsets, is_start=True)
            self._on_news()

        async def attempt(
            partitions: list[TopicPartition],
        ) -> Mapping[TopicPartition, ClientError]:
            is_committed = self._settings.read_committed
            return await try_ends(
                self._cluster, partitions, time, found, read_committed=is_committed
            )

        await self._retrying(attempt, lambda: self._unread(tokens))

    async def _retrying(
        self,
        attempt: Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, ClientError]]],
        wanted: Callable[[], list[TopicPartition]],
    ) -> None:
        cluster = self._cluster
        await retrying_each(attempt, wanted, cluster.refresh, cluster.settings.retry, self._rand)

    # --- when the user says so ------------------------------------------------------------------

    async def seek_to_time(self, partitions: Sequence[TopicPartition], time: int) -> None:
        """To the first offsets that are not older; to the end where there is none. What was taken
        away or put elsewhere meanwhile stays where it is."""
        tokens = self.tokens(partitions)
        self._put(tokens, await self._at_time(dict.fromkeys(partitions, time)), is_start=True)

    async def _at_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        is_committed = self._settings.read_committed
        offsets = await list_offsets(self._cluster, times, read_committed=is_committed)
        found = {each: at.offset for each, at in offsets.items() if at.offset >= 0}
        later = [each for each in times if each not in found]
        if later:
            found |= await self._at_time(dict.fromkeys(later, LATEST_TIME))
        return found

    async def rewind(
        self,
        partitions: Sequence[TopicPartition],
        committed: Callable[
            [Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetToCommit]]
        ],
    ) -> None:
        """Back to what was committed; where nothing was, to where reading began."""
        tokens = self.tokens(partitions)
        found = await committed(partitions)
        back = {each: token.place.start for each, token in tokens.items()}
        places = {each: start for each, start in back.items() if start is not None}
        places |= {each: at.offset for each, at in found.items() if each in tokens}
        log_rewound({each: places[each] for each in self._current(tokens) & places.keys()})
        self._put(tokens, places, is_start=False)

    def stop(self) -> None:
        """Asks nothing any more."""
        self._is_closed = True
        self._changed.set()
        for asker in self._askers:
            asker.cancel()
        for timer in self._resting:
            timer.cancel()

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*self._askers, return_exceptions=True)


def _nothing(found: Collection[TopicPartition], missing: Collection[TopicPartition]) -> None:
    """A group without an offset is a new one, for all that a consumer knows."""
