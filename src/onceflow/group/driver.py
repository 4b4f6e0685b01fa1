"""Runs the group machine: keeps the groups and performs the effects of each step.

Effects run in order, one machine step after the other: an effect that causes further effects adds
them behind those that wait. Answers go to the callback that the owner passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

from onceflow.errors import NewerRecord, RecordError
from onceflow.group import machine
from onceflow.group.config import GroupConfig
from onceflow.group.events import (
    AnswerJoin,
    AnswerSync,
    CancelTimer,
    Effect,
    GroupTimer,
    JoinResult,
    SetTimer,
    Store,
    SyncResult,
    Turn,
)
from onceflow.group.offsets import Offsets, expired
from onceflow.group.offsets_log import OffsetsLog, OffsetsWriter, ignore
from onceflow.group.persistence import group_of
from onceflow.group.records import (
    GroupRecordMalformed,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
)
from onceflow.group.state import Group, GroupState
from onceflow.group.timers import CallLater, Timers
from onceflow.records import MarkerType, StoredBatch, parse_marker, read_placed
from onceflow.runtime import Rand, SteadyClock
from onceflow.wire import ErrorCode

_RETENTION_CHECK = "the next look for expired offsets"
_SLICE = 256
"""Groups that the retention check looks at in one turn."""

_TimerName: TypeAlias = tuple[str, GroupTimer] | str
"""A timer of a group, or the retention check."""


Attempt: TypeAlias = Callable[[str, Callable[[], object]], object]
"""Does some work for one group, so that its failure harms no other group."""


def unguarded(_: str, work: Callable[[], object]) -> None:
    """Lets a failure go through."""
    work()


class GroupDependencies(NamedTuple):
    """What the groups need from elsewhere."""

    clock: SteadyClock
    rand: Rand
    call_later: CallLater
    log: OffsetsLog
    topic_exists: Callable[[str, int], bool]
    attempt: Attempt = unguarded


class GroupProblem(NamedTuple):
    """A record in the log that the driver cannot apply."""

    offset: int
    error: RecordError


class GroupDriver:
    """All groups, their timers and their way into the log."""

    __slots__ = (
        "_answer",
        "_attempt",
        "_clock",
        "_config",
        "_effects",
        "_groups",
        "_is_performing",
        "_timers",
        "_unchecked",
        "writer",
    )

    def __init__(
        self,
        config: GroupConfig,
        dependencies: GroupDependencies,
        answer: Callable[[int, JoinResult | SyncResult], None],
    ) -> None:
        self._config = config
        self._clock = dependencies.clock
        self._answer = answer
        self._attempt = dependencies.attempt
        self._timers: Timers[_TimerName] = Timers(
            self._clock, dependencies.call_later, self._timer_fired
        )
        self._groups: dict[str, Group] = {}
        self._effects: deque[tuple[Group, Effect]] = deque()
        self._is_performing = False
        self._unchecked: list[str] = []  # groups that the retention check has not come to yet
        self.writer = OffsetsWriter(dependencies.log, config.offsets_topic_num_partitions)

    # --- the groups ---------------------------------------------------------------------------

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def all_groups(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def add(self, group: Group) -> None:
        """Adds a new group."""
        self._groups[group.group_id] = group

    def forget_if_bare(self, group_id: str) -> None:
        """Removes a group that a failed commit would have created."""
        group = self._groups.get(group_id)
        if (
            group is not None
            and group.state is GroupState.EMPTY
            and group.protocol_type is None
            and not group.pending
            and not self.writer.admitted.places(group_id)
        ):
            del self._groups[group_id]

    def delete(self, group: Group, settled: Callable[[ErrorCode], None]) -> None:
        """Deletes an empty group and its offsets, also the pending ones of a transaction.

        Later requests find no group; if the log refuses the tombstones, it is back.
        """
        turn = self.turn()
        machine.forget_pending(group, turn)
        self.perform(group, turn)
        del self._groups[group.group_id]

        def deleted(code: ErrorCode) -> None:
            if code:
                self._groups.setdefault(group.group_id, group)
            else:
                group.transition(GroupState.DEAD, self._clock.wall_ms())
            settled(code)

        # From `admitted`, not `durable`: a commit that is still on its way needs a tombstone too,
        # or it would bring the group back.
        places = self.writer.admitted.places(group.group_id)
        self.writer.delete(group.group_id, places, deleted, with_group=True)

    # --- recovery and the end -----------------------------------------------------------------

    def replay(self, partition: int, batch: StoredBatch) -> list[GroupProblem]:
        """Applies one batch of a partition, in log order; returns the records that failed."""
        header = batch.header
        problems: list[GroupProblem] = []
        producer_id = header.producer_id if header.is_transactional else None
        try:
            if header.is_control:
                self._replay_marker(partition, batch)
                return problems
            for at, (key, value) in read_placed(batch):
                try:
                    self._replay(partition, at, key or b"", value, producer_id)
                except RecordError as error:
                    problems.append(GroupProblem(at, error))
        except RecordError as error:  # the rest of the batch cannot be read
            problems.append(GroupProblem(header.base_offset, error))
        return problems

    def _replay_marker(self, partition: int, batch: StoredBatch) -> None:
        marker = parse_marker(batch)
        if marker is not None:
            ended = partial(
                Offsets.end,
                partition=partition,
                producer_id=marker.producer_id,
                commit=marker.type is MarkerType.COMMIT,
            )
            self.writer.replay(ended)

    def _replay(
        self, partition: int, at: int, key: bytes, value: bytes | None, producer_id: int | None
    ) -> None:
        try:
            about = decode_key(key)
        except NewerRecord:
            if value is None:
                return  # a tombstone of what this broker never kept
            raise
        belongs = self.writer.partition_for(about.group_id)
        if belongs != partition:
            raise GroupRecordMalformed(f"group {about.group_id!r} belongs to partition {belongs}")
        if isinstance(about, OffsetKey):
            told = None if value is None else decode_offset(value)
            self.writer.replay(lambda state: state.apply(partition, at, about, told, producer_id))
        elif value is None:
            self._groups.pop(about.group_id, None)
        else:
            self._groups[about.group_id] = group_of(about.group_id, decode_group(value))

    def loaded(self) -> None:
        """Ends the replay: the sessions of all members start, and the retention check too."""
        for group_id in self.writer.durable.groups():
            self._groups.setdefault(group_id, Group(group_id))
        for group in list(self._groups.values()):
            turn = self.turn()
            machine.loaded(group, turn)
            self.perform(group, turn)
        self._schedule_retention_check()

    def close(self) -> None:
        """Answers all waiting members, and stops all timers."""
        groups = list(self._groups.values())
        self._groups.clear()
        self._timers.cancel_all()
        for group in groups:
            turn = self.turn()
            machine.bury(group, ErrorCode.NOT_COORDINATOR, turn)
            self.perform(group, turn)

    # --- effects ------------------------------------------------------------------------------

    def turn(self) -> Turn:
        """The circumstances of an event that occurs now."""
        return Turn(self._clock.wall_ms(), self._config)

    def perform(self, group: Group, turn: Turn) -> None:
        """Performs the effects of a machine step."""
        self._effects.extend((group, effect) for effect in turn.effects)
        # An effect may call back at once, as a refused append does. Performed right here, its
        # effects would overtake older ones, such as the cancelling of a timer.
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._effects:
                self._perform_one(*self._effects.popleft())
        finally:
            self._is_performing = False

    def _perform_one(self, group: Group, effect: Effect) -> None:
        if isinstance(effect, AnswerJoin | AnswerSync):
            self._answer(effect.ticket, effect.result)
        elif isinstance(effect, SetTimer):
            self._timers.set((group.group_id, effect.timer), effect.delay_ms / 1000)
        elif isinstance(effect, CancelTimer):
            self._timers.cancel((group.group_id, effect.timer))
        else:
            self._store(group, effect)

    def _store(self, group: Group, effect: Store) -> None:
        def settled(code: ErrorCode) -> None:
            turn = self.turn()
            machine.stored(group, effect.stored, code, turn)
            self.perform(group, turn)

        self.writer.write(group.group_id, settled, group=[effect.value])

    # --- time ---------------------------------------------------------------------------------

    def _timer_fired(self, name: _TimerName) -> None:
        if isinstance(name, str):
            self._check_retention()
            return
        group_id, timer = name
        group = self._groups.get(group_id)
        if group is not None:
            turn = self.turn()
            machine.timer_fired(group, timer, turn)
            self.perform(group, turn)

    def _check_retention(self) -> None:
        """Deletes expired offsets and groups that have nothing left: of some groups now, and of the
        others in later turns of the loop."""
        if not self._unchecked:
            self._unchecked = list(self._groups)
        some = self._unchecked[-_SLICE:]
        del self._unchecked[-_SLICE:]
        self._schedule_retention_check()  # first: whatever happens below, there is a next time
        for group_id in some:
            group = self._groups.get(group_id)
            if group is not None:
                self._attempt(group_id, partial(self._expire, group))

    def _expire(self, group: Group) -> None:
        offsets = self.writer.admitted
        gone = expired(group, offsets, self._clock.age_ms, self._config.offsets_retention_ms)
        is_over = group.state is GroupState.EMPTY and not group.pending
        if is_over and len(gone) == len(offsets.places(group.group_id)):
            self.delete(group, ignore)
        elif gone:
            self.writer.delete(group.group_id, gone, ignore)

    def _schedule_retention_check(self) -> None:
        interval_ms = 0 if self._unchecked else self._config.offsets_retention_check_interval_ms
        self._timers.set(_RETENTION_CHECK, interval_ms / 1000)
