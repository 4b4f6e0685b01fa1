"""What a partition remembers of one producer, and whether that producer may append a batch.

Judging changes nothing: an accepted batch is first written, then folded into the table. The order
of the checks is part of the protocol: a repeat is a repeat whatever else is wrong with it, and a
fenced producer gets that error before one about sequences.
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
"""Later than any time: the producer has written since the last `ProducerTable.expire`."""


class WrittenBatch(NamedTuple):
    """What a partition keeps of a batch in order to recognise and answer a repeat of it."""

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
    """Of its last batch. The client chose it, so it is only shown to operators."""
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    transaction_start: int | None = None
    """The first offset of its open transaction; None if it has none here."""
    window: list[WrittenBatch] = field(default_factory=list)
    """Its latest batches of this epoch, the newest last, at most `MAX_IN_FLIGHT`: a client has no
    more unanswered, so it repeats no older one. A plain list, because an empty deque takes more
    memory than everything else that is kept of a producer with one batch."""
    silent_since: int = field(default=AWAKE, compare=False)
    """When `ProducerTable.expire` first found that it had written nothing since its last look, by
    the clock of `expire`. Timestamps do not count: the client chooses them."""
    snapshot: int = field(default=0, compare=False)
    """The number of the newest snapshot that has it, or that began before it."""
    checked: int = field(default=0, compare=False)
    """The table's count of checks when `ProducerTable._before_change` last ran for it."""

    @property
    def last_sequence(self) -> int:
        return self.window[-1].last_sequence if self.window else NO_SEQUENCE


def judge(
    producer: ProducerMemory | None, header: BatchHeader, *, from_zero: bool
) -> WrittenBatch | ErrorCode:
    """NONE if a client's batch may be appended; the `WrittenBatch` that it repeats, if it does.

    `from_zero`: the batch begins a transaction of the kind that always starts at sequence 0, so an
    unknown producer is a new one. Otherwise the partition may have forgotten the producer, and any
    sequence will do.
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
        # First the repeat: its batch is in the log, and a client that got an error instead of the
        # first answer would report as failed what readers see.
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
    """Whether offsets may be committed in a transaction of `epoch`; they carry no sequence."""
    if producer is not None and epoch < producer.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.NONE


def judge_marker(
    producer: ProducerMemory | None, epoch: int, coordinator_epoch: int, *, transaction_version: int
) -> ErrorCode:
    """Whether a marker may be appended. One for an unknown producer always may.

    Where every transaction has its own epoch, the marker's is higher than that of the records it
    ends. An equal one is a repeated marker if nothing is open, or the epoch was the last one.
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
    # A coordinator that has been replaced must not decide what its successor has decided.
    if coordinator_epoch < producer.coordinator_epoch:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    return ErrorCode.NONE
