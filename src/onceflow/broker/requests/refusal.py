"""Why a request, or a part of it, is not done: the code for the client and words for people."""

from __future__ import annotations

from typing import NamedTuple

from onceflow.errors import (
    BatchChecksumMismatch,
    BatchesFollow,
    BatchTruncated,
    CompressionFailed,
    DecompressedTooLarge,
    DiskError,
    InvariantViolated,
    LogError,
    OffsetOutsideLog,
    OnceflowError,
    RecordError,
    StoreBusy,
    TimestampTypeRefused,
    UnknownLog,
)
from onceflow.wire import ErrorCode

LONGEST_MESSAGE = 1000
"""The longest message for people: much of it may be what a client has sent."""


def shortened(message: str) -> str:
    """The beginning of what would be too long to read."""
    if len(message) <= LONGEST_MESSAGE:
        return message
    return message[: LONGEST_MESSAGE - 3] + "..."


class RequestRefusal(NamedTuple):
    """Why a request is not granted."""

    code: ErrorCode
    message: str


class RequestRefused(OnceflowError):
    """Nothing was done; `code` goes to the client."""

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        *,
        record_errors: tuple[tuple[int, str | None], ...] = (),
    ) -> None:
        self.code = code
        self.message = None if message is None else shortened(message)
        super().__init__(self.message or code.name)
        self.record_errors = record_errors
        """Which records of a batch are wrong, by their place in it, where that is known."""

    @classmethod
    def of(cls, refusal: RequestRefusal | None) -> RequestRefused:
        """The refusal of a rule, to be raised."""
        if refusal is None:
            raise InvariantViolated("a-refusal-has-a-reason")
        return cls(ErrorCode(refusal.code), refusal.message)


# The first that fits counts.
_CODES: tuple[tuple[type[OnceflowError], ErrorCode], ...] = (
    (BatchChecksumMismatch, ErrorCode.CORRUPT_MESSAGE),
    (BatchTruncated, ErrorCode.INVALID_RECORD),
    (TimestampTypeRefused, ErrorCode.INVALID_TIMESTAMP),
    (DecompressedTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (RecordError, ErrorCode.INVALID_RECORD),
    (OffsetOutsideLog, ErrorCode.OFFSET_OUT_OF_RANGE),
    (UnknownLog, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    # Certainly not written and worth another try, which is what clients take this one for.
    (StoreBusy, ErrorCode.NOT_ENOUGH_REPLICAS),
    (DiskError, ErrorCode.KAFKA_STORAGE_ERROR),
    (LogError, ErrorCode.KAFKA_STORAGE_ERROR),
)


def refusal_of(error: Exception) -> RequestRefused:
    """An error of a lower floor, in the words of the protocol."""
    if isinstance(error, RequestRefused):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            return RequestRefused(code, str(error))
    return RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def was_examined(error: Exception) -> bool:
    """Whether a batch was whole and one, and was refused for what is in it. Such a refusal tells
    where the log starts, as Apache Kafka's does."""
    if isinstance(error, RequestRefused):
        return bool(error.record_errors)
    return isinstance(error, RecordError) and not isinstance(error, _NOT_ONE_WHOLE_BATCH)


_NOT_ONE_WHOLE_BATCH = (BatchTruncated, BatchChecksumMismatch, BatchesFollow, CompressionFailed)
