"""The consumer and the producer of a session, which has to know a little more of them than others
do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from onceflow.client.codec import GroupMember
from onceflow.client.consumer import Consumer, ConsumerWork
from onceflow.client.errors import BrokerError, ClientError
from onceflow.client.group import Membership
from onceflow.client.producer import Producer, ProducerBatch, Receipt
from onceflow.client.session.errors import OffsetsForgotten
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey

if TYPE_CHECKING:
    import pyarrow as pa


class SessionConsumer(Consumer):
    """Its positions move only with what the session hands out, and back with what it aborts; and
    what the group once had must not be forgotten."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._known: set[TopicPartition] = set()
        """Of these the group has had an offset."""

    def _new_work(self) -> ConsumerWork:
        made = super()._new_work()
        made.positions.on_asked = self._asked
        return made

    def has_committed(self, partitions: Iterable[TopicPartition]) -> None:
        """The group has an offset of these now."""
        self._known.update(partitions)

    def _asked(
        self, found: Collection[TopicPartition], missing: Collection[TopicPartition]
    ) -> None:
        forgotten = sorted(self._known.intersection(missing))
        self._known.update(found)
        if forgotten:
            raise OffsetsForgotten(
                f"group {self.settings.group_id!r} had offsets of "
                f"{', '.join(map(str, forgotten))}, and has none any more"
            )

    def behind(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where these go on behind what was handed out, markers and aborted records included."""
        position = self._work.fetcher.position
        found = {each: position(each) for each in partitions}
        return {each: offset for each, offset in found.items() if offset is not None}

    def go_back(self, positions: Mapping[TopicPartition, int]) -> None:
        """What was aborted is read again, as far as it is still this member's."""
        self._positions.go_back(positions)

    def prepare(self, max_rows: int) -> pa.Table | None:
        """The table that `poll_table` gives next, unless something happens until then; None when
        nothing has come. Its records stay where they are: only a poll hands them out."""
        return self._work.fetcher.buffer.prepare(max_rows)

    def refused(self, error: BrokerError, member: GroupMember) -> None:
        """The broker did not take offsets of that membership in a transaction: what that means is
        the same as if they had been committed by themselves."""
        machine = self._work.commits.machine
        if machine is not None:
            said = BrokerError(error.code, ApiKey.OFFSET_COMMIT.name, f"group {member.group_id!r}")
            machine.refused(said, Membership(member.member_id, member.generation))


class SessionProducer(Producer):
    """Says why a transaction can only be aborted."""

    @property
    def is_started(self) -> bool:
        """Whether a session has it, from the beginning of its start to the end of its close."""
        return self._is_started

    gather = Producer._gather
    """For transactions of a session, which so have no second coroutine for each record."""

    @property
    def reason(self) -> ClientError | None:
        """The first one."""
        return self._transactional().error

    async def start(self) -> None:
        await super().start()
        self._running().commit_pacing.offsets_follow = True

    renew = Producer._renew
    begin_at_once = Producer._begin_at_once
    close_at_once = Producer._close_at_once

    @property
    def needs_renewal(self) -> bool:
        """Whether `renew` comes before the next transaction."""
        return self._transactional().needs_renewal

    async def commit_with(self, offsets: Mapping[TopicPartition, int], member: GroupMember) -> None:
        """Sends what is gathered, and the offsets: at the same time, unless this broker is one that
        takes one first thing of a transaction after the other (`commit_pacing`)."""
        sender = self._running()
        commit_pacing = sender.commit_pacing
        if commit_pacing.is_needed and commit_pacing.is_first and offsets:
            self._accumulator.close_all()
            # As soon as the offsets are on their way, and while nothing else can go.
            asyncio.get_running_loop().call_soon(self._accumulator.write_ahead)
            with commit_pacing.offsets_first():
                await self.send_offsets_to_transaction(offsets, member)
        elif commit_pacing.is_needed:
            await self.flush()
            await self.send_offsets_to_transaction(offsets, member)
        else:
            self._accumulator.flushing += 1
            try:
                if self._accumulator.waits_only_for(self._transactional().partitions):
                    sender.wake()  # what is left is written while the offsets are on their way
                else:  # new partitions first: offsets that come too soon are only refused
                    sender.send_now()
                await self.send_offsets_to_transaction(offsets, member)
            finally:
                self._accumulator.flushing -= 1

    def failed_receipt(self, topic: str, error: ClientError) -> Receipt:
        """For a record that cannot become part of a transaction any more."""
        batch = ProducerBatch(TopicPartition(topic, -1), self._clock.monotonic())
        batch.outcome = error
        return Receipt(batch, 0)
