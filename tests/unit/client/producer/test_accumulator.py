"""Gathering records: when a batch is closed, ready, sent, expired, and what it holds of memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from onceflow.client.producer.accumulator import Accumulator, BatchLimits
from onceflow.client.producer.batch import (
    RECORD_OVERHEAD,
    Delivered,
    ProducerBatch,
    RecordInvalid as Invalid,
)
from onceflow.client.producer.idempotence import BatchResponse, ProduceVerdict, Sequences
from onceflow.records.columns import encode_all
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode as E
from onceflow.wire.transactions import ProducerIdAndEpoch

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
PAIR = ProducerIdAndEpoch(7, 0)
ROOM = 61 + 3 * (RECORD_OVERHEAD + 4)
"""For three records of four bytes."""


def core(limits: BatchLimits | None = None, *, idempotent: bool = True) -> Accumulator:
    sequences = Sequences(idempotent=idempotent)
    if idempotent:
        sequences.adopt(PAIR)
    return Accumulator(
        limits or BatchLimits(batch_size=ROOM, linger=2.0, delivery_timeout=60), sequences
    )


def put(
    accumulator: Accumulator, partition: TopicPartition = P0, now: float = 0.0, count: int = 1
) -> ProducerBatch:
    for _ in range(count):
        batch, _ = accumulator.append(partition, None, b"abcd", 1000, (), now)
    return batch


def sent(accumulator: Accumulator, now: float = 10.0) -> list[ProducerBatch]:
    return accumulator.drain(accumulator.ready(now), 1 << 20, now)


def acked(accumulator: Accumulator, batch: ProducerBatch, offset: int = 0) -> None:
    assert accumulator.answered(batch, BatchResponse(0, offset), 0.0) is ProduceVerdict.DELIVERED


def test_records_are_numbered_in_their_batch() -> None:
    accumulator = core()
    first = [accumulator.append(P0, b"k", None, 1000, (), 0.0) for _ in range(3)]
    assert [index for _, index in first] == [0, 1, 2]
    assert len({batch for batch, _ in first}) == 1
    other, index = accumulator.append(P1, None, b"v", 1000, [("h", b"1")], 0.0)
    assert index == 0
    assert other is not first[0][0]


def test_what_waits_is_known_by_its_partitions() -> None:
    accumulator = core()
    assert accumulator.waits_only_for(set())
    put(accumulator, P0)
    put(accumulator, P1)
    assert not accumulator.waits_only_for({P0})
    assert accumulator.waits_only_for({P0, P1, P2})
    sent(accumulator)
    assert accumulator.waits_only_for(set())


def test_a_batch_takes_what_fits_and_a_large_record_gets_its_own() -> None:
    accumulator = core()
    first = put(accumulator, count=3)
    second = put(accumulator)
    assert first is not second
    assert (first.count, first.is_open, second.is_open) == (3, False, True)
    large, index = accumulator.append(P0, None, b"x" * 1000, 1000, (), 0.0)
    assert (index, large.count, second.is_open) == (0, 1, False)
    assert put(accumulator) is not large


def test_a_record_that_cannot_be_written_changes_nothing() -> None:
    accumulator = core()
    for key, value, timestamp, headers in (
        ("k", b"", 0, ()),
        (b"", 5, 0, ()),
        (b"", b"", -1, ()),
        (b"", b"", 0, [("a", "b")]),
    ):
        with pytest.raises(Invalid):
            accumulator.append(P0, key, value, timestamp, headers, 0.0)  # type: ignore[arg-type]  # that is the point
    assert accumulator.used == 0
    assert not accumulator.incomplete()
    batch, _ = accumulator.append(P0, bytearray(b"k"), memoryview(b"v"), 1000, (), 0.0)  # type: ignore[arg-type]  # both are copied
    assert batch.count == 1


def test_an_open_batch_lingers() -> None:
    accumulator = core()
    put(accumulator, now=1.0)
    assert accumulator.ready(2.9) == []
    assert accumulator.next_deadline(2.9) == 3.0
    assert accumulator.ready(3.0) == [P0]
    assert accumulator.next_deadline(3.0) == 61.0  # the delivery timeout


@pytest.mark.parametrize("why", ["full", "flushing", "closing", "memory"])
def test_what_makes_a_batch_ready_before_it_has_lingered(why: str) -> None:
    accumulator = core(BatchLimits(batch_size=ROOM, linger=2.0, buffer_memory=180))
    put(accumulator)
    assert accumulator.ready(0.0) == []
    if why == "full":
        put(accumulator, count=2)
    elif why == "flushing":
        accumulator.flushing += 1
    elif why == "closing":
        accumulator.closing = True
    else:
        put(accumulator, P1, count=2)
        assert accumulator.is_full
    assert P0 in accumulator.ready(0.0)


def test_memory_is_held_until_there_is_an_outcome() -> None:
    accumulator = core()
    batch = put(accumulator, count=3)
    held = accumulator.used
    assert held == batch.size == ROOM
    assert sent(accumulator) == [batch]
    assert accumulator.used == held
    acked(accumulator, batch)
    assert accumulator.used == 0
    assert accumulator.incomplete() == []
    failed = put(accumulator)
    accumulator.fail(failed, ValueError())
    accumulator.fail(failed, TypeError())  # the first outcome stays
    assert accumulator.used == 0
    assert isinstance(failed.outcome, ValueError)
    assert accumulator.ready(100.0) == []


def test_an_open_batch_holds_all_that_it_may_come_to() -> None:
    """So that nobody has to ask for room with every record."""
    accumulator = core()
    small = put(accumulator)
    assert accumulator.used == ROOM > small.size
    put(accumulator, count=2)
    assert accumulator.used == ROOM
    large, _ = accumulator.append(P1, None, bytes(2 * ROOM), 1000, (), 0.0)
    assert accumulator.used == ROOM + large.size
    assert large.size > 2 * ROOM


def test_a_batch_that_is_sent_holds_what_it_has() -> None:
    accumulator = core()
    batch = put(accumulator)
    assert sent(accumulator) == [batch]
    assert accumulator.used == batch.size < ROOM
    acked(accumulator, batch)
    assert accumulator.used == 0


def test_one_batch_of_each_partition_goes_into_a_request() -> None:
    accumulator = core()
    batches = [put(accumulator, partition, count=3) for partition in (P0, P1) for _ in range(2)]
    assert sent(accumulator) == [batches[0], batches[2]]
    assert batches[0].is_outstanding
    assert batches[0].attempts == 1


def test_a_request_is_not_larger_than_it_may_be_and_nobody_starves() -> None:
    accumulator = core()
    for partition in (P0, P1, P2):
        put(accumulator, partition, count=3)
    seen = []
    for _ in range(3):
        batches = accumulator.drain([P0, P1, P2], ROOM + 10, 0.0)
        assert len(batches) == 1
        seen.append(batches[0].partition)
    assert sorted(seen) == [P0, P1, P2]
    put(accumulator, P0, count=3)
    acked(accumulator, accumulator.incomplete()[0])
    assert len(accumulator.drain([P0], 1, 0.0)) == 1  # too large alone, and goes


def test_a_partition_that_is_not_asked_for_keeps_its_batch() -> None:
    accumulator = core()
    put(accumulator, P0, count=3)
    put(accumulator, P1, count=3)
    assert [batch.partition for batch in accumulator.drain([P1], 1 << 20, 0.0)] == [P1]
    assert accumulator.ready(0.0) == [P0]
    assert accumulator.drain([], 1 << 20, 0.0) == []


def test_records_that_come_later_go_into_a_batch_of_their_own() -> None:
    accumulator = core()
    first = put(accumulator)
    sent(accumulator)
    assert not first.is_open
    assert put(accumulator) is not first


def test_written_batches_keep_their_place_among_records() -> None:
    accumulator = core()
    before = put(accumulator)
    table = pa.table({"value": [b"%d" % number for number in range(6)]})
    encoded = encode_all(table, max_batch_bytes=61 + 30, now_ms=5)
    assert len(encoded) > 1
    made = accumulator.add_encoded(P0, encoded, 0.0)
    after = put(accumulator)
    order = []
    while accumulator.incomplete():
        for batch in sent(accumulator):
            order.append(batch)
            acked(accumulator, batch)
    assert order == [before, *made, after]
    assert accumulator.used == 0


def test_a_retried_batch_waits_and_keeps_its_bytes() -> None:
    accumulator = core()
    batch = put(accumulator, count=3)
    sent(accumulator)
    data = bytes(batch.buffer)
    verdict = accumulator.answered(batch, BatchResponse(E.NOT_ENOUGH_REPLICAS), 12.0)
    assert verdict is ProduceVerdict.RETRY
    assert not batch.in_doubt
    assert accumulator.ready(11.9) == []
    assert accumulator.drain([P0], 1 << 20, 11.9) == []
    assert accumulator.next_deadline(11.0) == 12.0
    assert sent(accumulator, 12.0) == [batch]
    assert bytes(batch.buffer) == data
    assert batch.attempts == 2


@pytest.mark.parametrize(
    ("code", "in_doubt"),
    [
        (E.REQUEST_TIMED_OUT, True),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
        (E.NOT_LEADER_OR_FOLLOWER, True),
        (E.NOT_ENOUGH_REPLICAS, False),
        (E.CONCURRENT_TRANSACTIONS, False),
    ],
)
def test_some_errors_do_not_say_whether_the_records_are_there(code: E, in_doubt: bool) -> None:
    accumulator = core()
    batch = put(accumulator, count=3)
    sent(accumulator)
    accumulator.answered(batch, BatchResponse(code), 0.0)
    assert batch.in_doubt is in_doubt


def test_batches_expire_and_say_whether_they_may_be_in_the_log() -> None:
    accumulator = core()
    outstanding = put(accumulator, P0, now=0.0)
    sent(accumulator)
    lost = put(accumulator, P1, now=1.0)
    sent(accumulator)
    accumulator.requeue(lost, 20.0, in_doubt=True)
    returned = put(accumulator, P2, now=2.0)
    sent(accumulator)
    accumulator.requeue(returned, 20.0, in_doubt=False)  # its request never left
    waiting = put(accumulator, P0, now=3.0)
    young = put(accumulator, P2, now=50.0)
    assert accumulator.expired(59.9) == []
    assert accumulator.next_deadline(59.9) == 60.0
    found = accumulator.expired(63.0)
    assert found == [outstanding, lost, returned, waiting]
    for batch in found:
        accumulator.fail(batch, TimeoutError())
    assert [batch.in_doubt for batch in found] == [True, True, False, False]
    assert accumulator.incomplete() == [young]
    assert accumulator.expired(63.0) == []
    assert accumulator.next_deadline(63.0) == 110.0


def test_an_answer_after_the_end_is_late() -> None:
    accumulator = core()
    batch = put(accumulator)
    sent(accumulator)
    accumulator.fail(batch, TimeoutError())
    assert accumulator.answered(batch, BatchResponse(0, 5), 0.0) is ProduceVerdict.LATE
    assert isinstance(batch.outcome, TimeoutError)
    accumulator.requeue(batch, 0.0, in_doubt=True)
    assert accumulator.ready(100.0) == []


def test_what_was_never_sent_can_be_given_up_safely() -> None:
    accumulator = core()
    put(accumulator, P0)
    sent(accumulator)
    waiting = put(accumulator, P1)
    accumulator.fail(waiting, ValueError())
    assert not waiting.in_doubt
    assert put(accumulator, P1) is not waiting


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_batch_that_is_too_large_goes_in_halves(idempotent: bool) -> None:
    accumulator = core(idempotent=idempotent)
    whole = put(accumulator, count=3)
    sent(accumulator)
    verdict = accumulator.answered(whole, BatchResponse(E.MESSAGE_TOO_LARGE), 99.0)
    assert verdict is ProduceVerdict.SPLIT
    assert whole.outcome is None
    offset = 40
    for part in whole.parts:
        assert part in accumulator.incomplete()
        assert sent(accumulator)[0] is part
        acked(accumulator, part, offset)
        offset += part.count
    places = []
    for number in range(3):
        part, index = whole.locate(number)
        assert isinstance(part.outcome, Delivered)
        places.append(part.outcome.offset_of(index))
    assert places == [40, 41, 42]
    assert accumulator.used == 0
    assert not accumulator.incomplete()


def test_a_single_record_that_is_too_large_is_refused() -> None:
    accumulator = core()
    batch = put(accumulator)
    sent(accumulator)
    assert (
        accumulator.answered(batch, BatchResponse(E.MESSAGE_TOO_LARGE), 0.0)
        is ProduceVerdict.REFUSED
    )


def test_without_idempotence_a_retried_batch_goes_first_and_carries_no_numbers() -> None:
    accumulator = core(idempotent=False)
    batches = [put(accumulator, count=3) for _ in range(7)]
    gone = [batch for _ in range(7) for batch in sent(accumulator)]
    assert gone == batches[:5]
    assert all(batch.sealed and batch.sealed.header.producer_id == -1 for batch in gone)
    accumulator.requeue(gone[0], 0.0, in_doubt=True)
    assert sent(accumulator) == [gone[0]]
    acked(accumulator, gone[3])
    assert sent(accumulator) == [batches[5]]


def test_a_batch_can_be_found_as_long_as_it_takes_records() -> None:
    accumulator = core()
    first = put(accumulator)
    assert accumulator.open_batches == {"t": {0: first}}
    second = put(accumulator, count=3)
    other = put(accumulator, P1)
    assert accumulator.open_batches == {"t": {0: second, 1: other}}
    assert sent(accumulator) == [first, other]
    accumulator.fail(second, Invalid("it is given up"))
    assert accumulator.open_batches == {"t": {}}


def test_only_what_is_closed_is_written_ahead() -> None:
    accumulator = core()
    first, second = put(accumulator, count=3), put(accumulator)
    accumulator.write_ahead()
    assert [each.sealed is not None for each in (first, second)] == [True, False]
    accumulator.close_all()
    accumulator.write_ahead()
    assert [each.sealed is not None for each in (first, second)] == [True, True]
    assert put(accumulator) is not second
