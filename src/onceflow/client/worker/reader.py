"""A blocking reader for worker processes: an exact range of a partition's offsets as Arrow columns.

By default it reads committed records only: it waits for records behind the first open transaction
and skips aborted ones. While the application works on one response the next is in flight, also
across the border of two ranges, and never more: memory holds two responses.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from onceflow.client.codec import (
    FetchAnswer,
    FetchFrom,
    nothing_of,
    read_fetch,
    read_list_offsets,
    write_fetch,
    write_list_offsets,
)
from onceflow.client.consumer import RangeReading
from onceflow.client.errors import (
    Action,
    BrokerError,
    ClientError,
    OffsetOutOfRange,
    RangeUnavailable,
    action_for,
)
from onceflow.client.net import SPOKEN, Backoff
from onceflow.client.settings import ReaderSettings
from onceflow.client.transactions import is_worth_it
from onceflow.client.types import EARLIEST, LATEST
from onceflow.client.worker.cluster import BlockingCluster, understood
from onceflow.client.worker.connection import BlockingConnection
from onceflow.errors import MessageMalformed
from onceflow.records import StoredBatch
from onceflow.runtime import Clock, Rand, RealClock, RealRand
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa


class ReaderBusy(ClientError):
    """Another range was begun before the one before it was read to its end, or closed."""

    advice = "read one range after the other, or make a reader for each"


class Range(NamedTuple):
    """Offsets of a partition, from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


class BlockingReader:
    """For one thread; a process that is forked off opens connections of its own.

    >>> from onceflow.blocking import Producer
    >>> with Producer(bootstrap) as producer:
    ...     _ = producer.send("orders", b"paid")
    >>> with BlockingReader(ReaderSettings.of(bootstrap_servers=bootstrap)) as reader:
    ...     for batch in reader.read("orders", 0, 0, 1):
    ...         print(batch.column("value").to_pylist())
    [b'paid']
    """

    def __init__(
        self, settings: ReaderSettings, *, clock: Clock | None = None, rand: Rand | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock or RealClock()
        self._rand = rand or RealRand()
        self._cluster = BlockingCluster(
            settings.bootstrap_servers, settings, self._clock, self._rand
        )
        self._is_reading = False
        self._ahead: _Fetching | None = None
        """The next range, already requested."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self.forget_ahead()
        self._cluster.close()

    def forget_ahead(self) -> None:
        """Drops the next range, when the application does not read it after all. Until then, or
        until it is read, no other request can go to its leader."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def read(
        self, topic: str, partition: int, start: int, end: int, *, then: Range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records from `start` up to, not including, `end` (columns of `FETCHED_SCHEMA`), in
        order; then it ends, also where the last offsets hold no record. `then` is the next range:
        the reader requests it as soon as all of this one has arrived.

        Raises `OffsetOutOfRange` when the log does not hold `start`, `RangeUnavailable` when
        nothing more could be read for `default.api.timeout.ms`, and `RecordsUnreadable`.
        """
        from onceflow.client.consumer import portions_of

        place = TopicPartition(topic, partition)
        if self._is_reading:
            raise ReaderBusy(f"partition {place}: this reader is reading another range")
        self._is_reading = True
        fetching = self._begun(Range(topic, partition, start, end))
        limit = self._settings.max_decompressed_batch_bytes
        try:
            while (fetched := fetching.next()) is not None:
                batches, first = fetched
                if fetching.is_done and then is not None and self._ahead is None:
                    self._ahead = _Fetching(self, then)
                    self._ahead.ask_ahead()
                yield from portions_of(place, batches, first, end, limit=limit)
        except BaseException:
            self.forget_ahead()
            raise
        finally:
            fetching.close()
            self._is_reading = False

    def _begun(self, wanted: Range) -> _Fetching:
        """The range requested ahead, if it is this one; else a new request."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.wanted == wanted:
            return ahead
        if ahead is not None:
            ahead.close()
        return _Fetching(self, wanted)

    def known_topic_id(self, topic: str) -> str | None:
        """The topic's id from the last metadata; None without metadata, and where brokers give
        topics no ids."""
        return self._cluster.known_topic_id(topic)

    def topic_ids(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str | None]:
        """The topic ids as the partitions' leaders know them now, with one request to each leader;
        None where it gives the topic no id, or knows no such topic."""
        self.forget_ahead()

        def attempt(deadline: float, refind: bool) -> dict[TopicPartition, str | None]:
            if refind:
                self._cluster.refresh({partition.topic for partition in partitions}, deadline)
            return self._cluster.topic_ids(partitions, deadline)

        return self._cluster.trying(attempt, self._settings.retry)

    def is_topic(self, topic: str, partition: int, topic_id: str) -> bool:
        """Whether the topic still has this id, or has none. While brokers disagree they are asked
        again, for `default.api.timeout.ms`."""
        self.forget_ahead()
        place = TopicPartition(topic, partition)

        def attempt(deadline: float, refind: bool) -> bool:
            if refind:
                self._cluster.refresh({topic}, deadline)
            if self._cluster.topic_id(place, deadline) in (None, topic_id):
                return True
            if topic_id in self._cluster.topic_ids_of_brokers(topic, deadline):
                code = ErrorCode.INCONSISTENT_TOPIC_ID
                raise BrokerError(code, ApiKey.METADATA.name, f"topic {topic!r}")
            return False

        return self._cluster.trying(attempt, self._settings.retry)

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset of a partition, and the one behind its last readable record."""
        self.forget_ahead()
        place = TopicPartition(topic, partition)

        def attempt(deadline: float, refind: bool) -> tuple[int, int]:
            if refind:
                self._cluster.refresh({topic}, deadline)
            return self._ends(place, deadline)

        return self._cluster.trying(attempt, self._settings.retry)

    def _ends(self, partition: TopicPartition, deadline: float) -> tuple[int, int]:
        offsets = []
        key = ApiKey.LIST_OFFSETS
        for which in (EARLIEST, LATEST):
            connection = self._cluster.leader(partition, deadline)
            committed = self._settings.read_committed
            body = write_list_offsets(partition, which, read_committed=committed)
            code, offset = self._cluster.ask(connection, key, body, read_list_offsets, deadline)
            if code:
                raise BrokerError(code, key.name, f"partition {partition}")
            offsets.append(offset)
        return offsets[0], offsets[1]

    def _refresh(self, error: ClientError, partition: TopicPartition, deadline: float) -> None:
        if action_for(error) is not Action.REFRESH:
            return
        try:
            self._cluster.refresh({partition.topic}, deadline)
        except ClientError as problem:
            if not is_worth_it(problem):
                raise


class _Fetching:
    """One range that is being read."""

    def __init__(self, reader: BlockingReader, wanted: Range) -> None:
        self.wanted = wanted
        self._reader = reader
        self._settings = reader._settings
        self._cluster = reader._cluster
        self._clock = reader._clock
        self._place = TopicPartition(wanted.topic, wanted.partition)
        committed = self._settings.read_committed
        self._range = RangeReading(self._place, wanted.start, wanted.end, read_committed=committed)
        self._backoff = Backoff(self._settings.retry, reader._rand)
        self._deadline = 0.0
        self._asked: tuple[BlockingConnection, int] | None = None
        """The connection with a Fetch in flight, and its version."""
        self._ends: tuple[int, int] | None = None
        """The last stable offset and the high watermark."""
        self._went_on()

    @property
    def is_done(self) -> bool:
        """Whether all of it has arrived."""
        return self._range.is_done

    def next(self) -> tuple[list[StoredBatch], int] | None:
        """Batches, and the offset from which on their records are wanted; None at the end."""
        self._went_on()  # the application's time between two calls is not the broker's delay
        while not self._range.is_done:
            try:
                answer = self._fetch()
                self._check(answer)
            except ClientError as error:
                self._pause(error)
                continue
            if answer.high_watermark >= 0:
                self._ends = answer.last_stable_offset, answer.high_watermark
            first = self._range.position
            batches = self._range.take(answer)
            if self._range.position > first:
                self._went_on()
            elif self._clock.monotonic() >= self._deadline:
                raise self._unavailable("nothing came")
            self.ask_ahead()
            if batches:
                return batches, first
        return None

    def close(self) -> None:
        """Closes the connection if a response is still to come: the next request on it would read
        that response for its own."""
        if self._asked is not None:
            self._asked[0].close()
            self._asked = None

    def _went_on(self) -> None:
        self._deadline = self._clock.monotonic() + self._settings.retry.total_s
        self._backoff.reset()

    def _fetch(self) -> FetchAnswer:
        connection, version = self._asked or self._ask()
        self._asked = None
        try:
            buffer = connection.receive(self._cluster.soon(self._deadline))
        except BaseException:  # also an interrupt: the rest of this answer would be read as a next
            connection.close()
            raise
        return understood(connection, ApiKey.FETCH, lambda: self._read(version, buffer))

    def _read(self, version: int, buffer: memoryview) -> FetchAnswer:
        error, partitions, _ = read_fetch(version, buffer)
        if error:
            raise BrokerError(error, ApiKey.FETCH.name, f"partition {self._place}")
        if any(each.partition != self._place for each in partitions):
            raise MessageMalformed("not the partition that was asked for")
        return partitions[0] if partitions else nothing_of(self._place)

    def _ask(self) -> tuple[BlockingConnection, int]:
        settings = self._settings
        connection = self._cluster.leader(self._place, self._deadline)
        version = connection.version_of(ApiKey.FETCH, SPOKEN[ApiKey.FETCH])
        wanted = FetchFrom(
            self._place.partition, self._range.position, settings.max_partition_fetch_bytes
        )
        body = write_fetch(
            version,
            {self._place.topic: (wanted,)},
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            read_committed=settings.read_committed,
        )
        connection.send(ApiKey.FETCH, version, (body,), self._cluster.soon(self._deadline))
        return connection, version

    def ask_ahead(self) -> None:
        """Requests the next part. An error is dropped: it comes again when `next` needs the part,
        and is handled there."""
        if not self._range.is_done:
            with suppress(ClientError):
                self._asked = self._ask()

    def _check(self, answer: FetchAnswer) -> None:
        if not answer.error:
            return
        if answer.error != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise BrokerError(answer.error, ApiKey.FETCH.name, f"partition {self._place}")
        earliest, latest = self._reader.ends(*self._place)
        raise OffsetOutOfRange(
            self._place,
            f"there is no offset {self._range.position}; it holds the offsets from {earliest} up "
            f"to {latest}",
        )

    def _pause(self, error: ClientError) -> None:
        pause_s = self._backoff.next_s()
        if not is_worth_it(error):
            raise error
        if self._clock.monotonic() + pause_s >= self._deadline:
            raise self._unavailable(str(error)) from error
        time.sleep(pause_s)
        self._reader._refresh(error, self._place, self._deadline)

    def _unavailable(self, why: str) -> RangeUnavailable:
        limit_s = self._settings.retry.total_s
        if self._ends is not None:
            why = f"committed data ends at {self._ends[0]}, the log at {self._ends[1]}; {why}"
        return RangeUnavailable(
            f"partition {self._place}: nothing of the offsets from {self._range.position} up to "
            f"{self._range.end} could be read for {limit_s:g} s ({why})"
        )
