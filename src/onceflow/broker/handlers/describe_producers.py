"""DescribeProducers, version 0: who writes to a partition, and since where in a transaction.

Of a partition with very many producers some are described in each turn of the loop: the answer is
then not of one moment, but each row is. A partition that is named many times is described once, or
the answer might be any number of times as large as what is known.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import count, islice
from typing import TYPE_CHECKING

from kio.schema.describe_producers.v0.request import DescribeProducersRequest

from onceflow.broker.requests import Answer, AnswerPromise, RequestContext
from onceflow.producers import ProducerMemory, ProducerTable
from onceflow.wire import (
    DescribedPartition,
    ErrorCode,
    ProducerRow,
    write_describe_producers_response,
    write_producers,
)

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_NONE = -1
_SLICE = 1024
"""Producers that are described in one turn: about a millisecond."""
_requests = count(1)

Described = list[tuple[str, list[DescribedPartition]]]


def write(topics: Described, version: int) -> Iterable[bytes]:
    return write_describe_producers_response(topics)


def handle(
    node: Node, client: RequestContext, request: DescribeProducersRequest
) -> Answer[Described]:
    """Looks each partition up; the answer comes later when that takes long."""
    topics: Described = []
    work = _describe(node, request, topics)
    if next(work, StopIteration) is StopIteration:
        return topics
    promise: AnswerPromise[Described] = AnswerPromise(on_abandoned=work.close)
    node.slices.run(f"DescribeProducers {next(_requests)}", _then_resolve(work, promise, topics))
    return promise


def _then_resolve(
    work: Generator[None, None, bool], promise: AnswerPromise[Described], topics: Described
) -> Iterator[None]:
    is_whole = yield from work
    if is_whole:  # and not closed, because nobody waits for it any more
        promise.resolve(topics)


def _describe(
    node: Node, request: DescribeProducersRequest, topics: Described
) -> Generator[None, None, bool]:
    """Fills `topics`; a turn passes for every so many producers of all partitions."""
    left = _SLICE
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    for name, indexes in wanted.items():
        described: list[DescribedPartition] = []
        topics.append((name, described))
        for index in indexes:
            partition = node.topics.partition(name, index)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition is None else ErrorCode.NONE
            rows, parts = 0, []
            for some in () if partition is None else _slices(partition.producers):
                parts.append(write_producers(some))
                rows += len(some)
                left -= len(some)
                if left <= 0:
                    left = _SLICE
                    yield
            described.append(DescribedPartition(index, error, rows, parts))
    return True


def _slices(table: ProducerTable) -> Iterator[list[ProducerRow]]:
    ids = iter(list(table.ids()))
    while some := list(islice(ids, _SLICE)):
        known = ((producer_id, table.find(producer_id)) for producer_id in some)
        yield [_row(producer_id, each) for producer_id, each in known if each is not None]


def _row(producer_id: int, producer: ProducerMemory) -> ProducerRow:
    start = producer.transaction_start
    return ProducerRow(
        producer_id,
        producer.epoch,
        producer.window[-1].last_sequence if producer.window else _NONE,
        producer.last_timestamp,
        producer.coordinator_epoch,
        _NONE if start is None else start,
    )
