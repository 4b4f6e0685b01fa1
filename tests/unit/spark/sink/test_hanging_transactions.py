"""How a batch has ended that left something open: a table of what is known and what follows."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_producers.v0.response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

from onceflow.client.codec.cluster import HangingTransaction, describe_producers_request
from onceflow.client.types import TransactionDescription
from onceflow.errors import MessageMalformed
from onceflow.spark.sink.hanging_transactions import Known, known_by, was_committed
from onceflow.spark.sink.ledger import LedgerEntry, WriterEpoch
from onceflow.types import TopicPartition
from onceflow.wire.codec import decode, encode
from onceflow.wire.error_codes import ErrorCode

LEFT = HangingTransaction(TopicPartition("out", 0), 7, 5, 100)


def before(state: str, epoch: int, producer_id: int = 7) -> TransactionDescription:
    return TransactionDescription(
        transactional_id="id",
        coordinator="localhost:1",
        state=state,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=1,
        start_ms=None,
        partitions=frozenset(),
    )


@pytest.mark.parametrize(
    ("last", "is_ledger_whole", "said", "committed"),
    [
        # The ledger names the very batch, or one that was written before it.
        (WriterEpoch(7, 5), True, None, True),
        (WriterEpoch(7, 5), False, None, True),
        (WriterEpoch(7, 4), True, None, False),
        (WriterEpoch(6, 9), True, None, False),
        # Without a batch it proves nothing: only the coordinator can know.
        (None, True, None, None),
        (None, True, before("CompleteCommit", 6), True),
        (None, True, before("CompleteAbort", 6), False),
        # Somebody has written over it without asking.
        (WriterEpoch(7, 6), True, None, None),
        (WriterEpoch(7, 6), False, before("CompleteCommit", 6), None),
        # The ledger waits for a marker itself: only the coordinator can know.
        (WriterEpoch(7, 4), False, None, None),
        (WriterEpoch(7, 4), False, before("CompleteCommit", 5), True),
        (WriterEpoch(7, 4), False, before("CompleteCommit", 6), True),
        (WriterEpoch(7, 4), False, before("PrepareCommit", 6), True),
        (None, False, before("CompleteAbort", 6), False),
        (None, False, before("PrepareAbort", 5), False),
        # It says something of another transaction, or nothing yet.
        (None, False, before("CompleteCommit", 7), None),
        (None, False, before("CompleteCommit", 5, producer_id=8), None),
        (None, False, before("Ongoing", 5), None),
        (None, False, before("Empty", 6), None),
    ],
)
def test_how_it_ended(
    last: WriterEpoch | None,
    is_ledger_whole: bool,
    said: TransactionDescription | None,
    committed: bool | None,
) -> None:
    assert was_committed(LEFT, Known(last, is_ledger_whole, said)) is committed


@pytest.mark.parametrize(
    ("over", "begun", "committed"),
    [
        (None, WriterEpoch(7, 5), True),  # it has begun the ledger itself
        (None, WriterEpoch(7, 6), None),  # over a ledger that was empty, for whatever reason
        (None, WriterEpoch(7, 4), False),  # a first batch that failed
        (None, WriterEpoch(6, 9), None),
        (WriterEpoch(7, 5), WriterEpoch(7, 6), True),
        (WriterEpoch(7, 4), WriterEpoch(7, 6), False),
        (WriterEpoch(7, 6), WriterEpoch(7, 7), None),
    ],
)
def test_how_it_ended_when_a_ledger_was_begun_since(
    over: WriterEpoch | None, begun: WriterEpoch, committed: bool | None
) -> None:
    batch = None if over is None else LedgerEntry("q", 3, "d", 1, over)
    known = known_by(LedgerEntry("q", 4, "", 0, begun, True, batch), True, None)
    assert was_committed(LEFT, known) is committed


def test_a_first_batch_failed_before_another_query_began_the_ledger() -> None:
    first = LedgerEntry("q", -1, "", 0, WriterEpoch(7, 4), True)
    known = known_by(LedgerEntry("r", -1, "", 0, WriterEpoch(7, 6), True, first), True, None)
    assert was_committed(LEFT, known) is False
    assert was_committed(LEFT._replace(producer_epoch=4), known) is True
    assert was_committed(LEFT._replace(producer_epoch=3), known) is None
    torn = known._replace(is_ledger_whole=False)
    assert was_committed(LEFT, torn) is None


@pytest.mark.parametrize(
    ("own", "committed"),
    [
        (WriterEpoch(7, 4), False),
        (WriterEpoch(7, 5), None),
        (WriterEpoch(7, 6), None),
        (WriterEpoch(6, 4), None),
    ],
)
def test_a_driver_knows_what_it_has_not_committed(own: WriterEpoch, committed: bool | None) -> None:
    assert was_committed(LEFT, known_by(None, True, None, own)) is committed


def producer(number: int, start: int) -> ProducerState:
    return ProducerState(
        producer_id=number,
        producer_epoch=number + 1,
        last_sequence=1,
        last_timestamp=2,
        coordinator_epoch=3,
        current_txn_start_offset=start,
    )


def test_the_request_is_that_of_the_schema() -> None:
    places = [TopicPartition("a", 3), TopicPartition("b", 0), TopicPartition("a", 1)]
    written = memoryview(describe_producers_request(places).write(0))
    assert decode(DescribeProducersRequest, written) == DescribeProducersRequest(
        topics=(
            TopicRequest(name="a", partition_indexes=(3, 1)),
            TopicRequest(name="b", partition_indexes=(0,)),
        )
    )


def test_the_answer_is_read_and_not_when_it_is_cut() -> None:
    partitions = (
        PartitionResponse(
            partition_index=3,
            error_code=ErrorCode.NONE,
            error_message=None,
            active_producers=(producer(7, -1), producer(9, 44)),
        ),
        PartitionResponse(
            partition_index=1,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message="no",
            active_producers=(),
        ),
    )
    answer = DescribeProducersResponse(
        throttle_time=timedelta(), topics=(TopicResponse(name="a", partitions=partitions),)
    )
    written = memoryview(encode(answer))
    read = partial(describe_producers_request([]).read, 0)
    found = read(written)
    assert found.open == [HangingTransaction(TopicPartition("a", 3), 9, 10, 44)]
    assert found.errors == {TopicPartition("a", 1): ErrorCode.TOPIC_AUTHORIZATION_FAILED.value}
    for size in range(len(written) - 1):
        with pytest.raises(MessageMalformed):
            read(written[:size])
