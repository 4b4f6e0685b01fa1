"""A producer's batch: takes records while it is open, then has bytes, then an outcome.

A sealed batch is sent with exactly the same bytes in every attempt: by its header the leader
recognizes a duplicate. Only a new producer id or epoch changes the header, in a copy of the bytes:
the old ones may still wait in a connection's buffer. The records are never encoded twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index as to_index
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from onceflow.client.errors import ProducerError
from onceflow.errors import InvariantViolated
from onceflow.records import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Codec,
    NewBatch,
    StoredBatch,
    compress,
    next_sequence,
    seal,
    write_headers,
    write_section,
)
from onceflow.types import TopicPartition
from onceflow.wire import ProducerIdAndEpoch

if TYPE_CHECKING:
    from onceflow.client.producer.receipts import BatchFailure

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

RECORD_OVERHEAD: Final = 16
"""What a record takes besides its key, value and headers, rounded up."""
_LATEST: Final = 2**63 - 1
_MILLISECOND_NS: Final = 1_000_000
UNKNOWN_OFFSET: Final = -1


class RecordInvalid(ProducerError):
    """A record cannot be written: a key, value, header or timestamp has the wrong type or range."""


NOBODY: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
"""A producer without idempotence."""


class Delivered(NamedTuple):
    """A batch is in the log, for good."""

    base_offset: int
    """`UNKNOWN_OFFSET` if the broker does not say."""
    timestamp: int
    """The broker's, where the topic wants that; else -1."""

    def offset_of(self, index: int) -> int:
        """Of the record with that number in its batch."""
        return self.base_offset + index if self.base_offset >= 0 else UNKNOWN_OFFSET


class ProducerBatch:
    """Records for one partition that are sent, and succeed or fail, together.

    Only the accumulator changes a batch. `outcome` is None until there is one. `waiters` belongs to
    the receipts; the core does not use it.
    """

    __slots__ = (
        "attempts",
        "base_sequence",
        "created",
        "failure",
        "headers",
        "held",
        "in_doubt",
        "is_open",
        "is_outstanding",
        "keys",
        "last_time",
        "last_time_until_ns",
        "ordinal",
        "outcome",
        "partition",
        "parts",
        "producer",
        "retry_at",
        "sealed",
        "size",
        "times",
        "values",
        "waiters",
        "written",
    )

    def __init__(self, partition: TopicPartition, now: float) -> None:
        self.partition = partition
        self.created = now
        self.written = 0
        """How many records are in its bytes, once there are any."""
        self.size = HEADER_SIZE
        """An estimate from above until it is sealed."""
        self.held = 0
        """What counts of it against `buffer.memory`: while it is open all that it may come to."""
        self.is_open = True
        self.attempts = 0
        self.retry_at = 0.0
        self.is_outstanding = False
        """An answer may still come."""
        self.in_doubt = False
        """An attempt ended without saying whether the records are in the log."""
        self.producer = NOBODY
        self.base_sequence = NO_SEQUENCE
        self.ordinal = 0
        """Which batch of its pair it is in the partition."""
        self.sealed: NewBatch | None = None
        self.outcome: Delivered | BaseException | None = None
        self.parts: tuple[ProducerBatch, ...] = ()
        """What it was split into."""
        self.waiters: list[Any] = []
        self.failure: BatchFailure | None = None
        """Once it has failed, for the warning about records whose receipts were never awaited."""
        # The records, until they are bytes. What most of them have not is kept by their number.
        self.values: list[bytes | None] = []
        self.keys: dict[int, bytes] = {}
        self.headers: dict[int, bytes] = {}
        self.times: list[tuple[int, int]] = []
        """Each with the number of the first record that has it."""
        self.last_time = -1
        self.last_time_until_ns = 0
        """By the wall clock, if that is where it is from: before then it need not be made anew."""

    @classmethod
    def of_encoded(cls, partition: TopicPartition, encoded: NewBatch, now: float) -> ProducerBatch:
        """A batch that is written already, as `columns.encode_all` does, without a producer id."""
        batch = cls(partition, now)
        batch.is_open = False
        batch.written = encoded.header.record_count
        batch.size = batch.held = encoded.header.size
        batch.sealed = encoded
        return batch

    def __repr__(self) -> str:
        state = "open" if self.is_open else "outstanding" if self.is_outstanding else "waiting"
        if self.outcome is not None:
            state = repr(self.outcome)
        elif self.parts:
            state = "split"
        who = f"{self.producer.producer_id}/{self.producer.epoch}/{self.base_sequence}"
        return f"<Batch {self.partition} {self.count} records, {who}, {state}>"

    @property
    def count(self) -> int:
        """How many records are in it."""
        return self.written or len(self.values)

    @property
    def is_sequenced(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def is_done(self) -> bool:
        """Whether nothing more will happen to this very batch; its parts may still be under way."""
        return self.outcome is not None or bool(self.parts)

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: bytes | None,
        size: int,
    ) -> int:
        """The number of the record in the batch. Everything has been checked before."""
        index = len(self.values)
        self.values.append(value)
        if timestamp != self.last_time:
            self.last_time = timestamp
            self.last_time_until_ns = 0
            self.times.append((index, timestamp))
        if key is not None:
            self.keys[index] = key
        if headers is not None:
            self.headers[index] = headers
        self.size += size
        return index

    def now_at(self, wall_ns: int) -> None:
        """What is added next has this time, until the next millisecond; also if the clock is set
        back meanwhile, which is soon over: batches are sent."""
        time = wall_ns // _MILLISECOND_NS
        self.last_time_until_ns = (time + 1) * _MILLISECOND_NS
        if time != self.last_time:
            self.last_time = time
            self.times.append((len(self.values), time))

    def locate(self, index: int) -> tuple[ProducerBatch, int]:
        """Where record `index` is now: in this batch, or in a part of it after a split."""
        batch = self
        while batch.parts:
            for part in batch.parts:
                if index < part.count:
                    break
                index -= part.count
            else:
                raise InvariantViolated(f"there is no record {index} in the parts of {self!r}")
            batch = part
        return batch, index

    @property
    def buffer(self) -> memoryview:
        """The bytes to send."""
        if self.sealed is None:
            raise InvariantViolated(f"{self!r} has no bytes before it is sealed")
        return self.sealed.buffer

    def seal(
        self,
        producer: ProducerIdAndEpoch,
        base_sequence: int,
        *,
        transactional: bool = False,
        codec: Codec = Codec.NONE,
        level: int | None = None,
    ) -> NewBatch:
        """Write the records, as this producer's from this sequence on, and let go of them."""
        self.is_open = False
        self.producer = producer
        self.base_sequence = base_sequence
        if self.sealed is not None:
            sealed = _stamp(
                self.sealed,
                self.sealed.buffer,
                producer,
                base_sequence,
                transactional=transactional,
            )
        else:
            sealed = self._encode(transactional, codec, level)
        self._hold(sealed)
        return sealed

    def write_ahead(self, codec: Codec, level: int | None) -> None:
        """The records as bytes, before it is known under which number: when there is time."""
        if self.sealed is None:
            self._hold(self._encode(False, codec, level))

    def _hold(self, sealed: NewBatch) -> None:
        self.written = sealed.header.record_count
        self.values, self.keys, self.headers, self.times = [], {}, {}, []
        self.sealed = sealed

    def renumber(self, producer: ProducerIdAndEpoch, base_sequence: int) -> None:
        """The same records under another pair and sequence, in a copy of the bytes."""
        if self.sealed is None or self.is_outstanding:
            raise InvariantViolated(f"{self!r} cannot be renumbered")
        self.producer = producer
        self.base_sequence = base_sequence
        transactional = self.sealed.header.is_transactional
        copy = bytearray(self.sealed.buffer)
        self.sealed = _stamp(
            self.sealed, copy, producer, base_sequence, transactional=transactional
        )

    def _encode(self, transactional: bool, codec: Codec, level: int | None) -> NewBatch:
        """In plain Python, a tenth of a microsecond for each record: the kernels would take less,
        and the time to load them when the first batch is waited for."""
        section = write_section(self.values, self.times, self.keys, self.headers)
        if codec is not Codec.NONE:
            packed = compress(codec, memoryview(section)[HEADER_SIZE:], level)
            section = bytearray(HEADER_SIZE)
            section += packed
        return seal(
            section,
            attributes=codec | (TRANSACTIONAL_BIT if transactional else 0),
            last_offset_delta=self.count - 1,
            base_timestamp=self.times[0][1],
            max_timestamp=max(time for _, time in self.times),
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=self.base_sequence,
            record_count=self.count,
        )


def _stamp(
    batch: NewBatch,
    buffer: bytearray | memoryview,
    producer: ProducerIdAndEpoch,
    base_sequence: int,
    *,
    transactional: bool,
) -> NewBatch:
    """`batch`, whose bytes are in `buffer`, as written by another producer."""
    header = batch.header
    return seal(
        buffer,
        attributes=header.attributes | (TRANSACTIONAL_BIT if transactional else 0),
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=base_sequence,
        record_count=header.record_count,
    )


def split(batch: ProducerBatch) -> tuple[ProducerBatch, ProducerBatch]:
    """Two halves of a batch that is too large as a whole; their sequences are its sequences.

    Safe because the leader has refused the whole batch: no copy of it can be in the log, and later
    batches still continue the sequence. Receipts find their record with `ProducerBatch.locate`.
    """
    from onceflow.records import decode, encode

    if batch.sealed is None or batch.count < 2:
        raise InvariantViolated(f"{batch!r} cannot be split")
    header = batch.sealed.header
    rows = decode([StoredBatch(header, batch.buffer)])
    half = batch.count // 2
    halves = []
    for start, count in ((0, half), (half, batch.count - half)):
        part = ProducerBatch.of_encoded(
            batch.partition,
            encode(rows.slice(start, count), codec=header.codec),
            batch.created,
        )
        sequence = next_sequence(batch.base_sequence, start) if batch.is_sequenced else NO_SEQUENCE
        part.seal(batch.producer, sequence, transactional=header.is_transactional)
        halves.append(part)
    first, second = halves
    batch.parts = (first, second)
    return first, second


class Checked(NamedTuple):
    """A record but for its time, as a batch takes it."""

    key: bytes | None
    value: bytes | None
    headers: bytes | None
    """As they are written behind the value."""
    size: int
    """An estimate from above."""


def checked(key: object, value: object, headers: Headers) -> Checked:
    """Raises `RecordInvalid`."""
    name, content = checked_bytes("key", key), checked_bytes("value", value)
    section = checked_headers(headers) if headers else None
    size = RECORD_OVERHEAD + sum(map(len, (name or b"", content or b"", section or b"")))
    return Checked(name, content, section, size)


def checked_bytes(what: str, value: object) -> bytes | None:
    """A key or value that is not plain bytes: a copy, so that the caller cannot change it."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    how = f"pass {what}.encode()" if isinstance(value, str) else "serialise it first"
    raise RecordInvalid(
        f"the {what} of a record is {_kind(value)}, and only bytes or None can be sent; {how}"
    )


def _kind(value: object) -> str:
    if value is None or isinstance(value, bytes):
        return "bytes" if value is not None else "None"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def check_topic(topic: object) -> None:
    """Raises `RecordInvalid`."""
    if not isinstance(topic, str):
        raise RecordInvalid(f"the topic is {_kind(topic)}; pass its name as a str")


def checked_partition(partition: object) -> int | None:
    """The number, or None for any that the client chooses."""
    if partition is None:
        return None
    try:
        return to_index(partition)  # type: ignore[arg-type]  # what is no integer raises
    except TypeError:
        raise RecordInvalid(
            f"the partition is {_kind(partition)}; pass its number as an int, or None"
        ) from None


def checked_timestamp(timestamp: object) -> int:
    """Milliseconds since 1970."""
    try:
        number = to_index(timestamp)  # type: ignore[arg-type]  # what is no integer raises
    except TypeError:
        raise RecordInvalid(
            f"the timestamp of a record is {_kind(timestamp)}; pass an int, milliseconds since "
            "1970, such as int(time.time() * 1000)"
        ) from None
    if not 0 <= number <= _LATEST:
        raise RecordInvalid(f"timestamp {number} is negative or does not fit 64 bits")
    return number


def checked_headers(headers: Any) -> bytes:
    """As they are written behind the value."""
    if isinstance(headers, Mapping):
        raise RecordInvalid("the headers are a mapping; pass a list of pairs: [*headers.items()]")
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise RecordInvalid(
            f"the headers are {_kind(headers)}; pass a list of pairs such as [('trace', b'7')]"
        )
    for each in headers:
        match each:
            case (str(), bytes() | None):
                continue
        raise RecordInvalid(
            f"a header is {each!r}; pass pairs of a str, and bytes or None, such as ('trace', b'7')"
        )
    try:
        return write_headers(headers)
    except UnicodeEncodeError as error:
        raise RecordInvalid(f"the key of a header is not Unicode text: {error}") from error
