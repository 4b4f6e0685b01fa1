"""Fetch, versions 4-18 (from 13 on topics are named by id): records out, straight from the files.

The answer comes at once when there are `min_bytes` to send, when a partition has an error or when
the client does not wait; else when enough has become durable, at the latest after `max_wait`. At
least one batch is sent however large it is, so that no consumer is stuck there. A partition that is
named more than once is answered once, as it was named last, as by Apache Kafka.

Fetch sessions are declined (session id 0: clients then send full requests). Followers are not
served: there is no replication here. Never throttled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.broker.requests import Answer, AnswerPromise, RequestContext
from onceflow.broker.topics import NO_EPOCH, HostedPartition
from onceflow.errors import DiskError, LogError, OffsetOutsideLog
from onceflow.log import Span
from onceflow.wire import (
    ErrorCode,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    TopicRef,
    read_fetch_request,
    write_fetch_response,
)

if TYPE_CHECKING:
    from onceflow.broker.node import Node
    from onceflow.runtime import TimerHandle

read = read_fetch_request
write = write_fetch_response

_MOST_BYTES = 55 << 20  # Kafka's fetch.max.bytes of a broker
_SESSION_LESS = -1
_NEW_SESSION = 0


def handle(node: Node, client: RequestContext, request: FetchRequest) -> Answer[FetchResponse]:
    """Reads now, and waits if that is not enough."""
    if request.session_epoch not in (_SESSION_LESS, _NEW_SESSION):
        return FetchResponse([], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    topics = request.topics
    if len(topics) > 1 or (topics and len(topics[0][1]) > 1):
        request = _folded(request)
    response, size, failed = _read_all(node, request)
    if size >= request.min_bytes or failed or request.max_wait_ms <= 0 or not topics:
        return response
    return _Wait(node, request, response, size).promise


def _folded(request: FetchRequest) -> FetchRequest:
    """The request with every partition once, in the order in which they came first."""
    total = sum(len(partitions) for _, partitions in request.topics)
    wanted = {
        (topic, each.partition): each for topic, partitions in request.topics for each in partitions
    }
    if len(wanted) == total:
        return request
    topics: dict[TopicRef, list[FetchPartition]] = {}
    for (topic, _), each in wanted.items():
        topics.setdefault(topic, []).append(each)
    return request._replace(topics=list(topics.items()))


class _Wait:
    """A fetch that waits for more records.

    When there are more in a partition, only that one is looked at: how much the others have is
    remembered. They all are read once more when there is enough.
    """

    __slots__ = ("_node", "_request", "_size", "_timer", "_wanted", "promise")

    def __init__(
        self, node: Node, request: FetchRequest, response: FetchResponse, size: int
    ) -> None:
        """`response` is what there is now, of so many bytes."""
        self.promise: AnswerPromise[FetchResponse] = AnswerPromise(on_abandoned=self._stop)
        self._node = node
        self._request = request
        self._size = size
        self._wanted: dict[HostedPartition, tuple[TopicRef, FetchPartition, int]] = {}
        for (topic, partitions), (_, results) in zip(request.topics, response.topics, strict=True):
            for each, result in zip(partitions, results, strict=True):
                found = node.topics.partition(topic, each.partition)
                if found is not None:
                    self._wanted[found] = topic, each, _length(result)
        self._timer: TimerHandle = node.call_later(request.max_wait_ms / 1000, self._time_is_up)
        for partition in self._wanted:
            partition.wait(self._look)

    def _look(self, partition: HostedPartition) -> None:
        topic, wanted, before = self._wanted[partition]
        most = min(self._request.max_bytes, _MOST_BYTES)
        try:
            result = _read(self._node, self._request, topic, wanted, most, is_first=True)
        except (DiskError, LogError):
            # Never out of here: it would reach the request that appended, which is not to blame.
            self._time_is_up()
            return
        self._size += _length(result) - before
        self._wanted[partition] = topic, wanted, _length(result)
        if self._size >= self._request.min_bytes or result.error:
            self._end(_read_all(self._node, self._request)[0])

    def _time_is_up(self) -> None:
        self._end(_read_all(self._node, self._request)[0])

    def _end(self, response: FetchResponse) -> None:
        self._stop()
        if not self.promise.is_resolved:
            self.promise.resolve(response)

    def _stop(self) -> None:
        self._timer.cancel()
        for partition in self._wanted:
            partition.stop_waiting(self._look)


def _length(result: FetchResult) -> int:
    return 0 if result.records is None else result.records.length


def _read_all(node: Node, request: FetchRequest) -> tuple[FetchResponse, int, bool]:
    """The answer as of now, the bytes in it, and whether any partition has an error."""
    left = min(request.max_bytes, _MOST_BYTES)
    total, failed = 0, False
    topics = []
    for topic, partitions in request.topics:
        results = []
        for each in partitions:
            try:
                result = _read(node, request, topic, each, left, is_first=total == 0)
            except (DiskError, LogError):
                # Out of descriptors, or a file that cannot be read: no other partition suffers.
                result = FetchResult(each.partition, ErrorCode.KAFKA_STORAGE_ERROR)
            results.append(result)
            if result.records is not None:
                total += result.records.length
                left -= result.records.length
            failed = failed or result.error != 0
        topics.append((topic, results))
    return FetchResponse(topics), total, failed


def _read(
    node: Node,
    request: FetchRequest,
    topic: TopicRef,
    wanted: FetchPartition,
    left: int,
    *,
    is_first: bool,
) -> FetchResult:
    partition = node.topics.partition(topic, wanted.partition)
    if partition is None:
        # An empty list and not none, as Apache Kafka has it in this case alone.
        return FetchResult(wanted.partition, _unknown(node, topic), aborted=())
    index, current_epoch, offset, fetched_epoch, max_bytes = wanted
    error = epoch_error(partition, max(current_epoch, NO_EPOCH))
    if error:
        return FetchResult(index, error)
    if fetched_epoch > partition.leader_epoch:
        return FetchResult(index, ErrorCode.OFFSET_OUT_OF_RANGE)
    diverging = _divergence(partition, wanted) if fetched_epoch >= 0 else None
    high_watermark, stable = partition.high_watermark, partition.last_stable_offset
    limit = stable if request.read_committed else high_watermark
    log = partition.log
    records: Span | None = None
    try:
        if diverging is None:
            most = min(max_bytes, left)
            records = log.read(offset, max(most, 0), until=limit)
            if records.length > most and not is_first:
                records = None  # a whole batch is sent beyond the limits only when it is the first
    except OffsetOutsideLog:
        return FetchResult(index, ErrorCode.OFFSET_OUT_OF_RANGE)
    aborted = _aborted(partition, offset, records, limit) if request.read_committed else None
    return FetchResult(
        index, 0, high_watermark, stable, log.start_offset, aborted, records, diverging
    )


def _aborted(
    partition: HostedPartition, offset: int, records: Span | None, limit: int
) -> tuple[tuple[int, int], ...]:
    """The aborted transactions that a reader of these records has to leave out."""
    aborted = partition.producers.aborted
    if records is None or not records.length or not aborted:
        return ()
    return aborted.between(offset, min(partition.log.bound_of(offset, records), limit))


def _unknown(node: Node, topic: TopicRef) -> ErrorCode:
    if isinstance(topic, str) or node.topics.find(topic) is not None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.UNKNOWN_TOPIC_ID


def epoch_error(partition: HostedPartition, current_leader_epoch: int) -> ErrorCode:
    """A client that knows another epoch than ours has to learn or to wait."""
    if current_leader_epoch in (NO_EPOCH, partition.leader_epoch):
        return ErrorCode.NONE
    if current_leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def _divergence(partition: HostedPartition, wanted: FetchPartition) -> tuple[int, int] | None:
    """Where a reader's past parts from ours, if it does: its last record was lost here."""
    end = partition.end_of_epoch(wanted.last_fetched_epoch)
    if end is None or (end.epoch == wanted.last_fetched_epoch and end.offset >= wanted.offset):
        return None
    return end
