"""What a partition remembers of one producer, and the judgement of what it wants to append.

Judging changes nothing: a batch that is accepted is written first and folded into the table then.
The order of the questions is part of the protocol: a repeat is a repeat even if everything else
about it is wrong, and a producer that is fenced hears of that before it hears of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from onceflow.records import (
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    last_sequence,
    next_sequence,
)
from onceflow.wire import LAST_EPOCH, TRANSACTION_V2, ErrorCode

NO_COORDINATOR_EPOCH = -1
AWAKE = 2**63 - 1
"""Later than any time: the producer has written since its table last looked for silent ones."""


class WrittenBatch(NamedTuple):
    """One batch in the log, as far as a repeat of it has to be known and answered."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int
    """The largest of the batch, as stored."""


@dataclass(slots=True)
class ProducerMemory:
    """One producer id in one partition. Only the table that owns it changes it."""

    epoch: int
    last_timestamp: int
    """Of its last batch, as the client chose it: shown to operators, and good for nothing else."""
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    transaction_start: int | None = None
    """The first offset of the transaction that is open here."""
    window: list[WrittenBatch] = field(default_factory=list)
    """Its latest batches of this epoch, the newest last. At most `MAX_IN_FLIGHT`: a plain list,
    because an empty deque takes more memory than all else there is of a producer of one batch."""
    silent_since: int = field(default=AWAKE, compare=False)
    """When its table first found that it had written nothing since the time before, by the clock
    of `ProducerTable.expire`. Timestamps are the client's to choose, so they say nothing here."""
    snapshot: int = field(default=0, compare=False)
    """The number of the newest snapshot that has it, or that it is too young for."""
    checked: int = field(default=0, compare=False)
    """When its table last did what a change of it asks for: see `ProducerTable._before_change`."""

    @property
    def last_sequence(self) -> int:
        return self.window[-1].last_sequence if self.window else NO_SEQUENCE


def judge(
    producer: ProducerMemory | None, header: BatchHeader, *, from_zero: bool
) -> WrittenBatch | ErrorCode:
    """May a client's batch be appended? NONE if so; `WrittenBatch` if it is a repeat of that batch.

    `from_zero`: it starts a transaction of the kind that always starts at sequence 0, so that a
    producer nobody knows is a new one. Otherwise an unknown producer may be one that was forgotten,
    and any sequence will do.
    """
    first = header.base_sequence
    if producer is None:
        if from_zero and first != 0:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return ErrorCode.NONE
    epoch = header.producer_epoch
    if epoch == producer.epoch:
        window = producer.window
        last = last_sequence(first, header.last_offset_delta)
        for written in window:
            if written[0] == first and written[1] == last:
                return written
        expected = next_sequence(window[-1][1], 1) if window else 0
    elif epoch < producer.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    else:
        expected = 0
    if first != expected:
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if producer.transaction_start is not None and not header.attributes & TRANSACTIONAL_BIT:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def judge_offsets(producer: ProducerMemory | None, epoch: int) -> ErrorCode:
    """May offsets be committed in a transaction of `epoch`? They carry no sequence of their own."""
    if producer is not None and epoch < producer.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.NONE


def judge_marker(
    producer: ProducerMemory | None, epoch: int, coordinator_epoch: int, *, transaction_version: int
) -> ErrorCode:
    """May a marker be appended? One for a producer that is not known here always may.

    Where every transaction has its own epoch, a marker's is higher than that of the records it
    ends. An equal one is the repeat of a marker if nothing is open, or there was no higher one.
    """
    if producer is None:
        return ErrorCode.NONE
    if epoch < producer.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if (
        epoch == producer.epoch
        and transaction_version >= TRANSACTION_V2
        and producer.transaction_start is not None
        and epoch != LAST_EPOCH
    ):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if coordinator_epoch < producer.coordinator_epoch:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    return ErrorCode.NONE
