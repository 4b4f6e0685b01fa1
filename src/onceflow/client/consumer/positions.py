"""Where a consumer reads its partitions: from the group's committed offset, or if there is none,
from where `auto.offset.reset` says.

The offsets of newly assigned partitions are looked up in the background; until then they are not
read. `check` raises a lookup's error once, and the lookup is tried again. A partition whose offset
cannot be found keeps no other partition waiting.

Every lookup carries a token: the assignment that it was made for, and the number of seeks in it so
far. `_put`, the only place where a response becomes a position, drops responses whose token is out
of date. So a partition that was revoked and assigned again starts at the group's offset of now, not
at that of an old response, and a seek is not undone by a lookup that began before it.
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
"""Asks the coordinator once for the committed offset of each partition."""


class _Place:
    """One assignment of a partition, until it is revoked; assigned again, it gets a new one."""

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
        """Where reading began, or where the application's last seek went."""
        self.is_read = False
        """Whether the fetcher reads it, which it does once the first position is known."""
        self.is_paused = False
        self.asker: asyncio.Task[None] | None = None
        """The task that looks up where to begin."""
        self.problem: BaseException | None = None
        """The error of that lookup, until it has been raised."""
        self.backoff = backoff
        self.is_resting = False
        """Whether an error was just raised, and the pause before the next lookup still lasts."""


class _Token(NamedTuple):
    """The assignment that a lookup is for, and how many seeks it had when the lookup began."""

    place: _Place
    seeks: int


Tokens: TypeAlias = Mapping[TopicPartition, _Token]


class Positions:
    """The positions of a consumer's partitions. `ask_group` is None without a group; `on_news` is
    called when a lookup has ended."""

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
        """Those that are not read yet. Each poll looks at these only, and not at all partitions."""
        self._resting: set[asyncio.TimerHandle] = set()
        self._askers: dict[asyncio.Task[None], Tokens] = {}
        self.on_asked: Callable[[Collection[TopicPartition], Collection[TopicPartition]], None] = (
            _nothing
        )
        """Called with the partitions that have a committed offset, and with those that have none,
        before `auto.offset.reset` applies to the latter; may raise to prevent that."""
        self._is_closed = False
        self._changed = asyncio.Event()
        """Set when a partition is read or revoked, or when a lookup has failed."""

    @property
    def assigned(self) -> set[TopicPartition]:
        return set(self._places)

    @property
    def paused(self) -> set[TopicPartition]:
        return {partition for partition, place in self._places.items() if place.is_paused}

    # --- who is read ----------------------------------------------------------------------------

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Starts to read these partitions too, as soon as their offsets are known."""
        retry = self._cluster.settings.retry
        for partition in partitions:
            place = _Place(Backoff(retry, self._rand))
            self._places[partition] = self._unplaced[partition] = place
        self._ask()

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops reading these partitions."""
        revoked = set(partitions)
        self._fetcher.drop(revoked)
        for partition in revoked:
            self._places.pop(partition, None)
            self._unplaced.pop(partition, None)
        for asker, tokens in self._askers.items():
            if not self._unread(tokens):
                asker.cancel()
        self._changed.set()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continues reading at this offset."""
        self.require([partition])
        self._move(partition, offset, is_start=True)

    def go_back(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions again from these offsets, as far as they are assigned: the records
        did not reach the application. `start` stays as it is."""
        for partition, offset in offsets.items():
            if partition in self._places:
                self._move(partition, offset, is_start=False)

    def take_back(self, tokens: Tokens, firsts: Mapping[TopicPartition, int]) -> None:
        """The same, except for partitions that had a seek or a new assignment since."""
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
        """Raises `NotAssigned` for the first partition that is not assigned."""
        for partition in partitions:
            if partition not in self._places:
                raise NotAssigned(f"partition {partition} is not assigned to this consumer")

    def delivered(self) -> dict[TopicPartition, int]:
        """For each partition, the offset behind the last record taken from the fetcher, where that
        is known."""
        positions = {each: self._fetcher.position(each) for each in self._fetcher.assigned}
        return {each: offset for each, offset in positions.items() if offset is not None}

    # --- tokens ---------------------------------------------------------------------------------

    def tokens(self, partitions: Iterable[TopicPartition]) -> Tokens:
        """Tokens for a lookup. Take them before the request is sent: later they would also cover a
        seek or an assignment that the response knows nothing of."""
        places = {each: self._places[each] for each in partitions}
        return {each: _Token(place, place.seeks) for each, place in places.items()}

    def _current(self, tokens: Tokens) -> set[TopicPartition]:
        """The partitions for which a response still counts."""
        places = self._places
        return {
            each
            for each, (place, seeks) in tokens.items()
            if places.get(each) is place and place.seeks == seeks
        }

    def _put(
        self, tokens: Tokens, offsets: Mapping[TopicPartition, int], *, is_start: bool
    ) -> None:
        """Makes positions of a response. Nothing else may do that: the check of tokens is here."""
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
        # Usually all partitions are read, and this looks at none, even if there are thousands.
        return any(place.problem is not None for place in self._unplaced.values())

    def check(self) -> None:
        """Raises the error of a failed lookup once; the lookup is tried again after a pause."""
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

        # After a pause: an application that polls again at once would send requests in a loop.
        timer = asyncio.get_running_loop().call_later(pause_s, ask_again)
        self._resting.add(timer)
        if problem is not None:
            raise problem

    async def placed(self, partitions: Collection[TopicPartition]) -> None:
        """Waits until these partitions are read or revoked; raises the error of a failed lookup,
        within `default.api.timeout.ms`."""
        while any(
            place is not None and not place.is_read for place in map(self._places.get, partitions)
        ):
            if self._is_closed:
                raise ConsumerClosed("the consumer was closed meanwhile")
            self._raise_problem(partitions)
            self._changed.clear()
            await self._changed.wait()

    def _ask(self) -> None:
        """Starts lookups for the partitions that are not read and have no lookup yet."""
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
        """Runs a lookup for these partitions in the background."""
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
        """The partitions of a lookup that still need an offset."""
        return sorted(each for each in self._current(tokens) if not tokens[each].place.is_read)

    async def _find(self, tokens: Tokens, ask_group: AskGroup) -> None:
        """Looks up committed offsets; where the group has none, `auto.offset.reset` applies."""
        missing: set[TopicPartition] = set()

        async def attempt(
            partitions: list[TopicPartition],
        ) -> Mapping[TopicPartition, ClientError]:
            answers = await ask_group(partitions)
            # Drops outdated responses before `on_asked`, which would take them for the group's
            # offsets of now.
            answers = {each: answers[each] for each in self._current(tokens) & answers.keys()}
            committed = {each: at for each, at in answers.items() if isinstance(at, OffsetToCommit)}
            uncommitted = [each for each, at in answers.items() if at is None]
            self.on_asked(committed.keys(), uncommitted)
            offsets = {each: at.offset for each, at in committed.items()}
            self._put(tokens, offsets, is_start=True)
            missing.update(uncommitted)
            self._ask_by_reset(uncommitted)
            return {each: at for each, at in answers.items() if isinstance(at, ClientError)}

        await self._retrying(
            attempt, lambda: [each for each in self._unread(tokens) if each not in missing]
        )

    def _ask_by_reset(self, partitions: Collection[TopicPartition]) -> None:
        """Asks each leader for the first or last offsets, in a task of its own: a leader that does
        not respond keeps no other waiting."""
        policy = self._settings.auto_offset_reset
        if policy == NONE:  # the fetcher raises the error, when the partition's turn comes
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
        def take(offsets: Mapping[TopicPartition, int]) -> None:
            self._put(tokens, offsets, is_start=True)
            self._on_news()

        async def attempt(
            partitions: list[TopicPartition],
        ) -> Mapping[TopicPartition, ClientError]:
            is_committed = self._settings.read_committed
            return await try_ends(
                self._cluster, partitions, time, take, read_committed=is_committed
            )

        await self._retrying(attempt, lambda: self._unread(tokens))

    async def _retrying(
        self,
        attempt: Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, ClientError]]],
        wanted: Callable[[], list[TopicPartition]],
    ) -> None:
        cluster = self._cluster
        await retrying_each(attempt, wanted, cluster.refresh, cluster.settings.retry, self._rand)

    # --- when the application asks for it -------------------------------------------------------

    async def seek_to_time(self, partitions: Sequence[TopicPartition], time: int) -> None:
        """Seeks to the first offset at or after this time, or to the end if there is none. Skips
        partitions that had a seek or a new assignment meanwhile."""
        tokens = self.tokens(partitions)
        self._put(tokens, await self._at_time(dict.fromkeys(partitions, time)), is_start=True)

    async def _at_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        is_committed = self._settings.read_committed
        offsets = await list_offsets(self._cluster, times, read_committed=is_committed)
        positions = {each: at.offset for each, at in offsets.items() if at.offset >= 0}
        without = [each for each in times if each not in positions]
        if without:
            positions |= await self._at_time(dict.fromkeys(without, LATEST_TIME))
        return positions

    async def rewind(
        self,
        partitions: Sequence[TopicPartition],
        committed: Callable[
            [Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetToCommit]]
        ],
    ) -> None:
        """Goes back to the committed offsets; where there are none, to where reading began."""
        tokens = self.tokens(partitions)
        offsets = await committed(partitions)
        starts = {each: token.place.start for each, token in tokens.items()}
        targets = {each: start for each, start in starts.items() if start is not None}
        targets |= {each: at.offset for each, at in offsets.items() if each in tokens}
        log_rewound({each: targets[each] for each in self._current(tokens) & targets.keys()})
        self._put(tokens, targets, is_start=False)

    def stop(self) -> None:
        """Cancels all lookups, and starts no more."""
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
    """A plain consumer takes a group without an offset for a new one."""
