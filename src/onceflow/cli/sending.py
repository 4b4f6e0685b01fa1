"""The work of `onceflow produce`: an input, line by line, through a producer.

With a transactional id the whole input is one transaction: committed at its end, aborted on any
error and on Ctrl-C. Without one, what was sent before an error stays. Either way the user is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from onceflow.cli.lines import ParseLine, parse_lines, read_lines
from onceflow.cli.output import Bar, counted, warn
from onceflow.client.errors import ClientError
from onceflow.client.producer import Producer
from onceflow.client.receipts import Receipt
from onceflow.client.txn_states import State

_LEFT: Final[Mapping[State, str]] = {
    State.READY: "the transaction was aborted: nothing of the input will be seen",
    State.UNCLEAR_COMMIT: "the commit was on its way, and nobody has answered: it may have been "
    "done; look at the topic before you send the input again",
    State.ABORTABLE_ERROR: "the transaction could not be aborted; the broker does so when "
    "transaction.timeout.ms is over",
}
"""What became of a transaction that did not end well, by where the producer was left."""


class Work(NamedTuple):
    """Lines of an input, and where they go; no partition means by key."""

    descriptor: int
    parse: ParseLine
    topic: str
    partition: int | None


@dataclass(slots=True)
class Sent:
    """Acknowledged records of one partition: how many, and the offsets of the first and last."""

    partition: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Tally:
    """What was sent: `sent` is what was acknowledged, by partition."""

    sent: dict[int, Sent] = field(default_factory=dict)
    waiting: deque[Receipt] = field(default_factory=deque)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.sent.values())

    async def take(self, *, wait: bool) -> None:
        """Counts what has an outcome, in the order of sending; `wait`: until all has. Raises the
        first error."""
        while self.waiting and (wait or self.waiting[0].is_done):
            _, partition, offset, _ = await self.waiting.popleft()
            so_far = self.sent.get(partition)
            if so_far is None:
                self.sent[partition] = Sent(partition, 1, offset, offset)
            else:
                so_far.records += 1
                so_far.last_offset = offset

    async def take_what_is_good(self) -> None:
        """Counts all that was acknowledged; the first error among the rest has been told."""
        while self.waiting:
            with suppress(ClientError):
                await self.take(wait=True)


async def send_input(producer: Producer, work: Work, bar: Bar, *, as_json: bool) -> Tally:
    """Starts the producer and closes it; returns when all is acknowledged, and committed."""
    tally = Tally()
    async with producer:
        await producer.partitions_for(work.topic)  # a topic that is missing is told at once
        try:
            if producer.settings.transactional_id is None:
                await _send_lines(producer, work, tally, bar)
            else:
                async with producer.transaction():
                    await _send_lines(producer, work, tally, bar)
        except BaseException:
            await _tell_what_is_left(producer, tally, as_json)
            raise
    return tally


async def _send_lines(producer: Producer, work: Work, tally: Tally, bar: Bar) -> None:
    number = 1
    async for lines in read_lines(work.descriptor):
        records, problem = parse_lines(lines, work.parse, number)
        for record in records:
            receipt = await producer.send(
                work.topic,
                record.value,
                key=record.key,
                partition=work.partition,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )
            tally.waiting.append(receipt)
        await tally.take(wait=False)
        if problem is not None:
            raise problem
        number += len(lines)
        bar.advance(sum(map(len, lines)) + len(lines))
    await producer.flush()
    await tally.take(wait=True)


async def _tell_what_is_left(producer: Producer, tally: Tally, as_json: bool) -> None:
    """After an error: what a reader of the topic will see."""
    if producer.settings.transactional_id is not None:
        if left := _LEFT.get(producer.state):
            warn(left, as_json=as_json)
        return
    with suppress(ClientError):
        await producer.flush()
        await tally.take_what_is_good()
    if tally.records:
        done = counted(tally.records, "record")
        warn(f"sent before that, and not taken back: {done}", as_json=as_json)
