"""The root of all exceptions that Onceflow raises on purpose, and those of the broker, the log,
record batches and the wire. The client's are in `onceflow.client.errors`, Spark's in
`onceflow.spark.errors`; some derive from this root through a class of their own package.

A message says what was wrong, where, and what to do about it when that is known.
"""

from __future__ import annotations


class OnceflowError(Exception):
    """Root of all errors that Onceflow raises on purpose."""


# --- record batches ---------------------------------------------------------------------------


class RecordError(OnceflowError):
    """Bytes that are not a sound record batch, or records that cannot be made into one."""


class BatchTruncated(RecordError):
    """The buffer ends before the batch does."""


class BatchMalformed(RecordError):
    """A length, count, magic or attribute of the batch contradicts the format."""


class BatchesFollow(BatchMalformed):
    """There is more than the one batch that was expected."""


class TimestampTypeRefused(BatchMalformed):
    """A client claims that its timestamps are the broker's."""


class BatchChecksumMismatch(RecordError):
    """The CRC-32C stored in the batch is not that of its bytes."""


class RecordMalformed(RecordError):
    """A record inside a batch contradicts the format or the batch's header."""


class NewerRecord(RecordError):
    """A record of the broker's own that only a newer version can read."""


class CompressionFailed(RecordError):
    """The records section cannot be decompressed by the codec the header names."""


class DecompressedTooLarge(RecordError):
    """The records section grows past the limit when decompressed."""


class ColumnsMalformed(RecordError):
    """Columns that do not describe records: a type, a null or a column that is missing."""


class ColumnsTooLarge(RecordError):
    """More bytes than one Arrow binary column (2 GiB) or one batch can hold."""


# --- storage ----------------------------------------------------------------------------------


class DiskError(OnceflowError):
    """The disk refused."""


class DiskExhausted(DiskError):
    """The disk is sound but lacks something. Nothing was acknowledged, and the call may be repeated
    when there is enough of it again."""


class DiskFull(DiskExhausted):
    """No room."""


class OutOfDescriptors(DiskExhausted):
    """The process, or the machine, may not open another file."""


class DiskFailed(DiskError):
    """An I/O error. After one on a sync it is not known what is on the disk: stop."""


class PathInUse(DiskError):
    """Another process holds the data directory."""


class LogError(OnceflowError):
    """A partition log or the journal cannot do what was asked."""


class LogCorrupt(LogError):
    """Bytes that were durable are not what was written. Never repaired by cutting."""


class OffsetOutsideLog(LogError):
    """The offset is below the log's start or above its end."""


class UnknownLog(LogError):
    """No such partition here."""


class LogExists(LogError):
    """The partition is already there."""


class NewerFormat(LogError):
    """The data directory was written by a newer version."""


class StoreFailed(LogError):
    """A write or sync of the journal failed; the store has stopped for good."""


class StoreClosed(LogError):
    """The store was closed in an orderly way."""


class StoreBusy(LogError):
    """More bytes wait for the journal than may be held in memory; try again soon."""


class InvalidSetting(OnceflowError):
    """A setting has a value that is not allowed; the message names both and what is."""


class InvariantViolated(OnceflowError):
    """A named rule that must always hold does not: a defect in Onceflow."""


class IndexInvalid(LogError):
    """An index file contradicts itself or its segment; it is built anew from the log."""


# --- the wire ---------------------------------------------------------------------------------


class WireError(OnceflowError):
    """Bytes on a connection that are not a message of the Kafka protocol."""


class MessageMalformed(WireError):
    """A header or message contradicts its schema."""


class FrameTooLarge(WireError):
    """A frame is announced that is larger than allowed, or of negative length."""


class ListenFailed(OnceflowError):
    """The broker cannot listen on its address."""
