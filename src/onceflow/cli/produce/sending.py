"""The work of `onceflow produce`: an input, line by line, through a producer.

With a transactional id the whole input is one transaction: committed at its end, aborted on any
error and on Ctrl-C. Without one, what was sent before an error stays. Both are reported.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from onceflow.cli.common import Bar, counted, warn
from onceflow.cli.produce.lines import ParseLine, no_record, parse_lines, read_lines
from onceflow.client import (
    ClientError,
    DeliveryFailed,
    Producer,
    ProducerError,
    ProducerState,
    Receipt,
    RecordInvalid,
)

_LEFT: Final[Mapping[ProducerState, str]] = {
    ProducerState.READY: "the transaction was aborted: readers will see nothing of the input",
    ProducerState.UNCLEAR_COMMIT: "the commit was sent and no answer came: it may have "
    "succeeded; check the topic before you send the input again",
    ProducerState.ABORTABLE_ERROR: "the transaction could not be aborted; the broker does so when "
    "transaction.timeout.ms is over",
}
"""What became of a transaction that did not end well, by where the producer was left."""
_RECORD: Final = re.compile(r"\brecord (\d+): ")
"""How the client names a record of a batch that a broker has named."""
_MOST_PARTS: Final = 5


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


class Failure(NamedTuple):
    """A line that was not acknowledged."""

    line: int
    receipt: Receipt
    error: ClientError


@dataclass(slots=True)
class Tally:
    """What was sent: `sent` is what was acknowledged, by partition."""

    sent: dict[int, Sent] = field(default_factory=dict)
    waiting: deque[tuple[int, Receipt]] = field(default_factory=deque)
    """By the number of its line."""
    failures: list[Failure] = field(default_factory=list)
    last_line: int = 0
    """Of those that were acknowledged."""

    @property
    def records(self) -> int:
        return sum(each.records for each in self.sent.values())

    async def take(self, *, wait: bool) -> None:
        """Counts what has an outcome, in the order of sending; `wait`: until all has. Raises the
        first error."""
        while self.waiting and (wait or self.waiting[0][1].is_done):
            line, receipt = self.waiting.popleft()
            try:
                _, partition, offset, _ = await receipt
            except ClientError as error:
                self.failures.append(Failure(line, receipt, error))
                raise
            self.last_line = line
            so_far = self.sent.get(partition)
            if so_far is None:
                self.sent[partition] = Sent(partition, 1, offset, offset)
            else:
                so_far.records += 1
                so_far.last_offset = offset

    async def take_all(self, *, wait: bool) -> None:
        """Counts all that was acknowledged, and gathers the failures."""
        while self.waiting and (wait or self.waiting[0][1].is_done):
            with suppress(ClientError):
                await self.take(wait=wait)


async def send_input(producer: Producer, work: Work, bar: Bar, *, as_json: bool) -> Tally:
    """Starts the producer and closes it; returns when all is acknowledged, and committed."""
    tally = Tally()
    async with producer:
        await producer.partitions_for(work.topic)  # fails at once if the topic is missing
        try:
            if producer.settings.transactional_id is None:
                await _send_lines(producer, work, tally, bar)
            else:
                async with producer.transaction():
                    await _send_lines(producer, work, tally, bar)
        except BaseException as error:
            await _settle(producer, tally)
            _tell_what_is_left(producer, tally, as_json)
            if isinstance(error, ProducerError) and tally.failures:
                raise _naming_lines(error, tally.failures) from error.__cause__
            raise
    return tally


async def _send_lines(producer: Producer, work: Work, tally: Tally, bar: Bar) -> None:
    number = 1
    async for lines in read_lines(work.descriptor):
        records, problem = parse_lines(lines, work.parse, number)
        for line, record in enumerate(records, number):
            try:
                receipt = await producer.send(
                    work.topic,
                    record.value,
                    key=record.key,
                    partition=work.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=record.headers,
                )
            except RecordInvalid as error:
                raise no_record(line, error) from error
            tally.waiting.append((line, receipt))
        await tally.take(wait=False)
        if problem is not None:
            raise problem
        number += len(lines)
        bar.advance(sum(map(len, lines)) + len(lines))
    with suppress(DeliveryFailed):  # the receipts tell, one by one
        await producer.flush()
    await tally.take(wait=True)


# --- after an error ----------------------------------------------------------------------------


async def _settle(producer: Producer, tally: Tally) -> None:
    """Waits until all that was sent has an outcome. With a transaction that is over already, as
    far as it ever will be."""
    is_over = producer.settings.transactional_id is not None
    if not is_over:
        with suppress(ClientError):  # which the receipts tell as well
            await producer.flush()
    await tally.take_all(wait=not is_over)


def _tell_what_is_left(producer: Producer, tally: Tally, as_json: bool) -> None:
    """What a reader of the topic will see."""
    if producer.settings.transactional_id is not None:
        if left := _LEFT.get(producer.state):
            warn(left, as_json=as_json)
        return
    if tally.records:
        done = counted(tally.records, "record")
        is_before = not tally.failures or tally.last_line < tally.failures[0].line
        what = "sent before that" if is_before else "acknowledged"
        behind = "" if is_before else f", the last of them line {tally.last_line}"
        warn(f"{what}, and not taken back: {done}{behind}", as_json=as_json)
    unknown = [each.line for each in tally.failures if each.error.outcome == "unknown"]
    if unknown:
        warn(
            f"{lines_text(unknown)} may have been written: no answer came; check the topic "
            f"before you send them again",
            as_json=as_json,
        )


def _naming_lines(error: ProducerError, failures: list[Failure]) -> ProducerError:
    """The same error, with the lines of the input that it is about. A broker takes or refuses a
    batch as a whole; where it names the records that it refuses it for, by their numbers in the
    batch, those are named by their lines."""
    batch, _ = failures[0].receipt.batch.locate(failures[0].receipt.number)
    lines: dict[int, int] = {}
    for each in failures:
        found, index = each.receipt.batch.locate(each.receipt.number)
        if found is batch:
            lines[index] = each.line

    def named(match: re.Match[str]) -> str:
        line = lines.get(int(match[1]))
        return match[0] if line is None else f"line {line}: "

    reason = _RECORD.sub(named, str(error))
    was = "was" if len(lines) == 1 else "were"
    what = "not acknowledged" if error.outcome == "unknown" else "refused"
    message = f"{lines_text(list(lines.values()))} of the input {was} {what}: {reason}"
    return type(error)(message, outcome=error.outcome, advice=error.advice)


def lines_text(lines: list[int]) -> str:
    """`line 3`, `lines 3 to 7 and 9`; of many parts the first few."""
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    shown = [
        str(first) if first == last else f"{first} to {last}" for first, last in parts[:_MOST_PARTS]
    ]
    if len(parts) > _MOST_PARTS:
        shown.append("others")
    *most, last_part = shown
    text = f"{', '.join(most)} and {last_part}" if most else last_part
    return f"line {text}" if len(lines) == 1 else f"lines {text}"
