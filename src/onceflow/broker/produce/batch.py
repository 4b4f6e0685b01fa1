"""What a batch from a client has to fulfil before it may be appended to a topic.

Checked are its bytes, every record in it and what the topic's config asks for; nothing is changed
but the batch itself, where the config wants another codec. A few bytes can stand for many: how much
may be decompressed and compressed is for the caller to say, by an `Effort`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceflow.broker.config import TopicConfig
from onceflow.broker.requests import RequestRefused
from onceflow.errors import DecompressedTooLarge, RecordError
from onceflow.records import (
    CODEC_MASK,
    DECOMPRESSED_LIMIT,
    HEADER_SIZE,
    MAGIC,
    Codec,
    NewBatch,
    RecordsSummary,
    Room,
    StoredBatch,
    validate_records,
)
from onceflow.runtime import loading
from onceflow.wire import ErrorCode

_ZSTD_FROM = 7
_MAGIC_AT = 16
LOG_APPEND_TIME = "LogAppendTime"
_FOREVER = 2**63 - 1
_NO_TIMESTAMP = -1
_MOST_NAMED = 100
_LEAST_TO_COMPRESS = 4 << 10
"""A batch that is built anew takes as long as compressing so much, however small it is."""
CODECS = {"uncompressed": Codec.NONE} | {codec.name.lower(): codec for codec in Codec}


class HeavyBatch(Exception):
    """The batch takes more than the effort that was left for it. It may be good or not."""


class Effort:
    """How much may be done for the batches of one request."""

    __slots__ = ("_left", "_room", "_to_compress", "compressed", "decompressed")

    def __init__(
        self, decompressed: int, to_compress: int = DECOMPRESSED_LIMIT, room: Room | None = None
    ) -> None:
        self._left = decompressed
        self._to_compress = to_compress
        self._room = room or Room()
        self.decompressed = 0
        """So many bytes were, up to now."""
        self.compressed = 0

    def validate(self, batch: NewBatch) -> RecordsSummary:
        """As `validate_records`; raises `HeavyBatch` for what is more than is left."""
        if not batch.header.attributes & CODEC_MASK:
            return validate_records(batch)
        limit = min(self._left, DECOMPRESSED_LIMIT)
        if len(batch.buffer) - HEADER_SIZE > limit:
            raise HeavyBatch
        size = limit  # what turns out to be damaged may do so with its last byte
        try:
            summary = validate_records(batch, limit, self._room)
            size = summary.size
        except DecompressedTooLarge as error:
            if limit < DECOMPRESSED_LIMIT:
                raise HeavyBatch from error
            raise
        finally:
            self._left -= size
            self.decompressed += size
        return summary

    def take_compression(self, size: int) -> None:
        """Raises `HeavyBatch` for what takes longer to compress than is left."""
        size = max(size, _LEAST_TO_COMPRESS)
        if size > self._to_compress:
            raise HeavyBatch
        self._to_compress -= size
        self.compressed += size


def checked_batch(
    topic: str,
    config: TopicConfig,
    records: memoryview | None,
    version: int,
    now_ms: int,
    effort: Effort,
) -> NewBatch:
    """The batch to append. Raises `RequestRefused`, a `RecordError` or `HeavyBatch`."""
    batch = _one_batch(records, version)
    header, data = batch
    if len(data) > config.max_message_bytes:
        raise RequestRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {len(data)} bytes and max.message.bytes of {topic} is "
            f"{config.max_message_bytes}",
        )
    summary = _checked_records(topic, config, batch, now_ms, effort)
    codec = CODECS.get(config.compression_type)
    if codec is not None and codec != header.attributes & CODEC_MASK:
        effort.take_compression(summary.size)
        return _recompressed(batch, codec, _level(config, codec))
    if summary.max_timestamp != header.max_timestamp:
        return batch.with_max_timestamp(summary.max_timestamp)
    return batch


def _one_batch(records: memoryview | None, version: int) -> NewBatch:
    if not records:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "the request holds no record batch")
    try:
        batch = NewBatch.parse(records)
    except RecordError:
        if len(records) > _MAGIC_AT and (magic := records[_MAGIC_AT]) != MAGIC:
            code = ErrorCode.INVALID_RECORD if magic < MAGIC else ErrorCode.CORRUPT_MESSAGE
            message = f"only batches of magic {MAGIC} are served, not {magic}"
            raise RequestRefused(code, message) from None
        raise
    if batch.header.attributes & CODEC_MASK == Codec.ZSTD and version < _ZSTD_FROM:
        raise RequestRefused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce version {_ZSTD_FROM}"
        )
    return batch


def _checked_records(
    topic: str, config: TopicConfig, batch: NewBatch, now_ms: int, effort: Effort
) -> RecordsSummary:
    summary = effort.validate(batch)
    if summary.null_keys and "compact" in config.cleanup_policy:
        raise _refusal(
            batch,
            ErrorCode.INVALID_RECORD,
            lambda columns: columns["key"].is_null(),
            f"{topic} is compacted and takes no record without a key",
        )
    if config.message_timestamp_type == LOG_APPEND_TIME:
        return summary
    if summary.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        latest = now_ms + config.message_timestamp_after_max_ms
        raise _refusal(
            batch,
            ErrorCode.INVALID_TIMESTAMP,
            lambda columns: _timestamps(columns) > latest,
            f"a timestamp is further ahead of the broker's {now_ms} than "
            f"message.timestamp.after.max.ms ({config.message_timestamp_after_max_ms}) allows",
        )
    if config.message_timestamp_before_max_ms < _FOREVER:
        _check_oldest(batch, now_ms, config.message_timestamp_before_max_ms)
    return summary


def _check_oldest(batch: NewBatch, now_ms: int, limit_ms: int) -> None:
    def is_too_old(columns: Any) -> Any:
        timestamps = _timestamps(columns)
        return (timestamps != _NO_TIMESTAMP) & (timestamps < now_ms - limit_ms)

    refusal = _refusal(
        batch,
        ErrorCode.INVALID_TIMESTAMP,
        is_too_old,
        f"a timestamp is further behind the broker's {now_ms} than "
        f"message.timestamp.before.max.ms ({limit_ms}) allows",
    )
    if refusal.record_errors:
        raise refusal


def _refusal(
    batch: NewBatch, code: ErrorCode, is_wrong: Callable[[Any], Any], message: str
) -> RequestRefused:
    """Names the first records of the batch that are wrong; a small batch can hold a million."""
    with loading:
        from onceflow.records import decode

    wrong = is_wrong(decode([StoredBatch(*batch)]))
    rows = [index for index, each in enumerate(wrong.tolist()) if each]
    named = tuple((index, message) for index in rows[:_MOST_NAMED])
    if len(rows) > len(named):
        message += f"; so it is with {len(rows)} records, the first {len(named)} of which are named"
    return RequestRefused(code, message, record_errors=named)


def _timestamps(columns: Any) -> Any:
    return columns["timestamp"].cast("int64").to_numpy()


def _level(config: TopicConfig, codec: Codec) -> int | None:
    """The level that the topic wants; None is the codec's own default."""
    if codec is Codec.GZIP:
        return None if config.compression_gzip_level < 0 else config.compression_gzip_level
    return {
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }.get(codec)


def _recompressed(batch: NewBatch, codec: Codec, level: int | None) -> NewBatch:
    with loading:
        from onceflow.records import decode, encode

    header = batch.header
    try:
        return encode(
            decode([StoredBatch(header, batch.buffer)]),
            codec=codec,
            level=level,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
        )
    except RecordError as error:
        raise RequestRefused(ErrorCode.INVALID_RECORD, str(error)) from error
