"""The errors of reading and of consumer groups, besides those of all requests."""

from __future__ import annotations

from typing import Self

from onceflow.client.errors.requests import BrokerError, ClientError
from onceflow.errors import DecompressedTooLarge
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode

LIMIT = "max.decompressed.batch.bytes"
"""The setting that a batch was too large for."""


class OffsetOutOfRange(BrokerError):
    """The log does not hold the offset that is to be read, and no setting says where to go on."""

    def __init__(self, partition: TopicPartition, message: str) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE, ApiKey.FETCH.name, f"partition {partition}", message
        )
        self.partition = partition
        self.advice = "seek to an offset that is there, or set auto.offset.reset"


class NoPosition(ClientError):
    """A partition was assigned without a position, and `auto.offset.reset` is `none`."""

    advice = "seek to an offset, or set auto.offset.reset to earliest or latest"


class LogTruncated(ClientError):
    """Records that were read are no longer in the log: a new leader never had them."""

    advice = "undo what was made of the records from `end_offset` on, then seek there"

    partition: TopicPartition
    position: int
    end_offset: int

    @classmethod
    def of(cls, partition: TopicPartition, position: int, end_offset: int) -> Self:
        """Read up to `position`, of which the log has what is below `end_offset`."""
        error = cls(
            f"partition {partition} was read up to offset {position}, and its leader has only what "
            f"is below {end_offset} of that: the records behind it were lost with another broker"
        )
        error.partition, error.position, error.end_offset = partition, position, end_offset
        return error


class RecordsUnreadable(ClientError):
    """A batch came whose bytes are damaged, that cannot be understood, or that is too large when it
    is decompressed."""

    advice = "read again; if that fails at the same offset, seek past it, and look at the broker"

    partition: TopicPartition
    offset: int
    next_offset: int | None = None
    """Behind the batch, where that is known: where to go on without it."""

    @classmethod
    def of(
        cls,
        partition: TopicPartition,
        offset: int,
        cause: object,
        *,
        next_offset: int | None = None,
    ) -> Self:
        """Everything below `offset` was read."""
        is_too_large = isinstance(cause, DecompressedTooLarge)
        limit = f" ({LIMIT})" if is_too_large else ""
        behind = "" if next_offset is None else f"; the next batch begins at offset {next_offset}"
        error = cls(
            f"partition {partition} cannot be read at offset {offset}: {cause}{limit}{behind}"
        )
        error.partition, error.offset, error.next_offset = partition, offset, next_offset
        if is_too_large:
            error.advice = (
                f"set {LIMIT} to more, if there is memory for it, or seek past it, to `next_offset`"
            )
        return error


class RangeUnavailable(ClientError):
    """A range of offsets was not there to be read in time."""

    advice = "call again later; an open transaction holds readers of committed records back"


class NotAssigned(ClientError):
    """Something was asked about a partition that is not being read."""

    advice = "assign the partition first"


class ConsumerError(ClientError):
    """Root of the errors of groups, and of wrong use of a consumer."""


class WrongUse(ConsumerError):
    """The consumer cannot do this, as it was set up or in the state that it is in."""


class CommitFailed(ConsumerError):
    """Nothing was committed: the member is out of its group, and others may have its partitions.

    What was read since the last commit will be read again, by the members that have the partitions.
    """

    advice = "do not commit that again: poll, and go on with what comes"


class RebalanceInProgress(CommitFailed):
    """Nothing was committed: the group is handing out its partitions anew."""

    advice = "poll, which takes part in that; then commit again what is still assigned"


class FencedMember(ConsumerError):
    """Another consumer with the same `group.instance.id` has taken over."""

    advice = "stop: the other one does the work now, or give each its own group.instance.id"


class ConsumerClosed(WrongUse):
    """The consumer was closed, or not started yet."""

    advice = "use it inside `async with Consumer(...)`"
