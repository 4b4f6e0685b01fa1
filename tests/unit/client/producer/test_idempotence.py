"""The rules of idempotence, one by one: what may be sent, and what an answer means."""

from __future__ import annotations

import pytest

from onceflow.client.producer.idempotence import BatchResponse, ProduceVerdict, Sequences
from onceflow.errors import InvariantViolated
from onceflow.wire import LAST_EPOCH
from onceflow.wire.error_codes import ErrorCode as E
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.client.producer.numbered_batches import GAP, NEWER, P0, P1, PAIR, Producer, numbers

# --- sending --------------------------------------------------------------------------------------


def test_numbers_are_given_when_a_batch_is_first_sent() -> None:
    producer = Producer()
    first, second = producer.put(2)
    assert not first.is_sequenced
    assert producer.send() == [first]  # alone until it is acknowledged
    assert numbers([first]) == [(3, 0)]
    producer.ack(first)
    assert producer.send() == [second]
    assert numbers([second]) == [(3, 2)]
    assert producer.state().next_sequence == 4
    assert producer.state().last_acked_sequence == 1
    assert producer.state().last_acked_offset == 101


def test_nothing_is_sent_without_a_producer_id() -> None:
    producer = Producer()
    producer.sequences.producer = None
    assert producer.sequences.needs_producer_id
    producer.put(1)
    assert producer.core.ready(10.0) == []
    assert producer.send() == []
    producer.sequences.adopt(PAIR)
    assert len(producer.send()) == 1


def test_at_most_five_are_in_flight_counted_from_the_earliest() -> None:
    producer = Producer()
    batches = producer.started(8)
    assert numbers(batches[:5]) == [(3, 2), (3, 4), (3, 6), (3, 8), (3, 10)]
    producer.ack(batches[1])
    producer.ack(batches[2])
    assert producer.send() == []  # the first could be driven out of the broker's memory
    producer.ack(batches[0])
    assert producer.send() == batches[5:8]


def test_partitions_count_for_themselves() -> None:
    producer = Producer()
    producer.started(5)
    assert numbers(producer.started(5, P1)[:1]) == [(3, 2)]


def test_only_the_earliest_is_sent_again() -> None:
    producer = Producer()
    batches = producer.started(6)
    for index in (2, 0, 4, 1, 3):
        producer.lose(batches[index])
    for batch in batches[:4]:
        assert producer.send() == [batch]
        producer.ack(batch)
    assert producer.send() == batches[4:]  # behind the last repeat something new may follow


def test_numbers_wrap() -> None:
    producer = Producer()
    producer.sequences.adopt(PAIR, {P0: 2**31 - 3})
    batches = producer.put(3)
    assert producer.send() == batches
    assert numbers(batches) == [(3, 2**31 - 3), (3, 2**31 - 1), (3, 1)]
    for batch in batches:
        producer.ack(batch)
    assert producer.state().last_acked_sequence == 2
    assert not producer.has_gap()


def test_where_another_process_goes_on() -> None:
    producer = Producer(transactional=True)
    producer.started(1)
    assert producer.sequences.next_sequences() == {P0: 4}
    heir = Producer(transactional=True)
    heir.sequences.adopt(PAIR, producer.sequences.next_sequences())
    (batch,) = heir.put(1)
    heir.send()
    assert numbers([batch]) == [(3, 4)]


def test_a_new_pair_waits_for_what_is_in_flight_and_starts_at_zero() -> None:
    producer = Producer()
    (second,) = producer.started(1)
    producer.sequences.adopt(NEWER)
    (third,) = producer.put(1)
    assert producer.send() == []
    producer.lose(second)
    assert producer.send() == [second]
    assert numbers([second]) == [(3, 2)]
    producer.ack(second)
    assert producer.send() == [third]
    assert numbers([third]) == [(4, 0)]


def test_the_same_pair_goes_on_counting() -> None:
    producer = Producer(transactional=True)
    producer.put(1)
    producer.ack(producer.send()[0])
    producer.sequences.adopt(PAIR)
    producer.put(1)
    assert numbers(producer.send()) == [(3, 2)]


def test_a_transactional_producer_is_idempotent() -> None:
    with pytest.raises(InvariantViolated):
        Sequences(idempotent=False, transactional=True)


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "plain", "transactional"),
    [
        (E.NONE, ProduceVerdict.DELIVERED, ProduceVerdict.DELIVERED),
        (E.DUPLICATE_SEQUENCE_NUMBER, ProduceVerdict.DELIVERED, ProduceVerdict.DELIVERED),
        (E.NOT_LEADER_OR_FOLLOWER, ProduceVerdict.RETRY, ProduceVerdict.RETRY),
        (E.REQUEST_TIMED_OUT, ProduceVerdict.RETRY, ProduceVerdict.RETRY),
        (E.NOT_ENOUGH_REPLICAS, ProduceVerdict.RETRY, ProduceVerdict.RETRY),
        (E.CONCURRENT_TRANSACTIONS, ProduceVerdict.RETRY, ProduceVerdict.RETRY),
        (E.UNKNOWN_PRODUCER_ID, ProduceVerdict.RETRY, ProduceVerdict.RETRY),  # says no log start
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, ProduceVerdict.RESTART, ProduceVerdict.ABORTABLE),
        (E.MESSAGE_TOO_LARGE, ProduceVerdict.SPLIT, ProduceVerdict.SPLIT),
        (E.RECORD_LIST_TOO_LARGE, ProduceVerdict.SPLIT, ProduceVerdict.SPLIT),
        (E.INVALID_PRODUCER_EPOCH, ProduceVerdict.REFUSED, ProduceVerdict.ABORTABLE),
        (E.INVALID_TXN_STATE, ProduceVerdict.REFUSED, ProduceVerdict.ABORTABLE),
        (E.INVALID_RECORD, ProduceVerdict.REFUSED, ProduceVerdict.ABORTABLE),
        (E.TOPIC_AUTHORIZATION_FAILED, ProduceVerdict.REFUSED, ProduceVerdict.ABORTABLE),
        (E.TRANSACTION_ABORTABLE, ProduceVerdict.REFUSED, ProduceVerdict.ABORTABLE),
        (E.CLUSTER_AUTHORIZATION_FAILED, ProduceVerdict.FATAL, ProduceVerdict.FATAL),
        (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ProduceVerdict.FATAL, ProduceVerdict.FATAL),
    ],
)
def test_what_an_answer_to_the_next_batch_means(
    code: E, plain: ProduceVerdict, transactional: ProduceVerdict
) -> None:
    for is_transactional, expected in ((False, plain), (True, transactional)):
        producer = Producer(transactional=is_transactional)
        batch = producer.started(1)[0]
        assert producer.sequences.decide(producer.state(), batch, BatchResponse(code)) is expected


def test_a_duplicate_without_an_offset_is_a_success() -> None:
    producer = Producer()
    batch = producer.started(1)[0]
    assert (
        producer.answer(batch, BatchResponse(E.DUPLICATE_SEQUENCE_NUMBER))
        is ProduceVerdict.DELIVERED
    )
    assert producer.state().last_acked_sequence == 3
    assert producer.state().last_acked_offset == 101


def test_a_broker_that_has_lost_its_memory_is_met_with_a_new_epoch() -> None:
    producer = Producer()
    batches = producer.started(3)
    assert producer.answer(batches[0], GAP) is ProduceVerdict.RESTART
    assert producer.send() == []  # the others are not answered yet
    assert producer.answer(batches[1], GAP) is ProduceVerdict.RETRY
    assert producer.send() == []
    producer.lose(batches[2])
    assert producer.send() == [batches[0]]
    assert producer.sequences.producer == NEWER
    assert numbers(batches) == [(4, 0), (4, 2), (4, 4)]
    for batch in batches[:2]:
        producer.ack(batch)
        producer.send()
    producer.ack(batches[2])
    assert not producer.has_gap()


@pytest.mark.parametrize("code", [E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.UNKNOWN_PRODUCER_ID])
def test_what_it_may_have_taken_before_is_not_sent_under_another_number(code: E) -> None:
    producer = Producer()
    first, second = producer.started(2)
    producer.lose(first)
    producer.lose(second)
    producer.send()
    answer = BatchResponse(code, log_start_offset=0)
    assert producer.answer(first, answer) is ProduceVerdict.REFUSED
    assert first.in_doubt
    assert producer.send() == [second]
    assert producer.answer(second, answer) is ProduceVerdict.REFUSED
    (third,) = producer.put(1)
    assert producer.send() == [third]
    assert numbers([third]) == [(4, 0)]


def test_what_comes_too_early_waits_for_its_turn() -> None:
    producer = Producer()
    first, second = producer.started(2)
    assert producer.answer(second, GAP) is ProduceVerdict.RETRY
    assert producer.send() == []
    producer.ack(first)
    assert producer.send() == [second]
    assert numbers([second]) == [(3, 4)]


def test_a_refused_batch_leaves_a_gap_that_a_new_epoch_closes() -> None:
    producer = Producer()
    first, second, third = producer.started(3)
    assert producer.answer(first, BatchResponse(E.INVALID_RECORD)) is ProduceVerdict.REFUSED
    assert producer.state().unresolved
    late = producer.put(1)
    assert producer.answer(second, GAP) is ProduceVerdict.RESTART
    assert producer.answer(third, GAP) is ProduceVerdict.RETRY
    assert producer.send() == [second]
    assert numbers([second, third]) == [(4, 0), (4, 2)]
    producer.ack(second)
    assert producer.send() == [third, *late]
    assert numbers(late) == [(4, 4)]


def test_a_gap_at_the_end_is_closed_before_anything_else_is_sent() -> None:
    producer = Producer()
    (batch,) = producer.started(1)
    producer.core.fail(batch, TimeoutError())
    assert batch.in_doubt
    (after,) = producer.put(1)
    assert producer.send() == [after]
    assert numbers([after]) == [(4, 0)]


def test_nothing_new_is_sent_behind_a_gap() -> None:
    producer = Producer()
    first, second = producer.started(2)
    producer.core.fail(first, TimeoutError())
    (third,) = producer.put(1)
    assert producer.send() == []
    producer.lose(second)
    assert producer.send() == [second]  # unchanged: it may have been taken
    producer.ack(second)
    assert producer.send() == [third]
    assert numbers([second, third]) == [(3, 4), (3, 6)]


def test_an_acknowledged_successor_shows_that_the_lost_batch_was_taken() -> None:
    producer = Producer()
    first, second = producer.started(2)
    producer.core.fail(first, TimeoutError())
    assert producer.has_gap()
    producer.ack(second)
    assert not producer.has_gap()
    (third,) = producer.put(1)
    producer.send()
    assert numbers([third]) == [(3, 6)]


def test_so_does_its_own_answer_when_it_comes_late() -> None:
    producer = Producer()
    (batch,) = producer.started(1)
    producer.core.fail(batch, TimeoutError())
    assert producer.has_gap()
    assert producer.answer(batch, BatchResponse(0, 50)) is ProduceVerdict.LATE
    assert not producer.has_gap()
    (after,) = producer.put(1)
    producer.send()
    assert numbers([after]) == [(3, 4)]


def test_a_gap_in_one_partition_moves_the_others_when_they_are_ready() -> None:
    producer = Producer()
    broken = producer.started(1)[0]
    other = producer.started(2, P1)
    producer.core.fail(broken, TimeoutError())
    producer.put(1)
    producer.send()
    assert producer.sequences.producer == NEWER
    waiting = producer.put(1, P1)
    assert producer.send(P1) == []
    producer.ack(other[0])
    producer.ack(other[1])
    assert producer.send(P1) == waiting
    assert numbers(waiting) == [(4, 0)]


def test_partitions_with_gaps_share_one_new_epoch() -> None:
    producer = Producer()
    for partition in (P0, P1):
        producer.core.fail(producer.started(1, partition)[0], TimeoutError())
    batches = producer.put(1) + producer.put(1, P1)
    assert producer.send() + producer.send(P1) == batches
    assert numbers(batches) == [(4, 0), (4, 0)]


def test_after_the_last_epoch_another_producer_id_is_needed() -> None:
    producer = Producer(pair=ProducerIdAndEpoch(7, LAST_EPOCH))
    first, second = producer.started(2)
    producer.answer(first, BatchResponse(E.INVALID_RECORD))
    producer.answer(second, GAP)
    assert producer.send() == []
    assert producer.sequences.needs_producer_id
    producer.sequences.adopt(ProducerIdAndEpoch(8, 0))
    assert producer.send() == [second]
    assert (second.producer, second.base_sequence) == ((8, 0), 0)


def test_a_transaction_ends_with_its_gap() -> None:
    producer = Producer(transactional=True)
    first, second = producer.started(2)
    producer.core.fail(first, TimeoutError())
    assert producer.answer(second, GAP) is ProduceVerdict.ABORTABLE
    assert producer.has_gap()
    (after,) = producer.put(1)
    assert producer.send() == []
    assert producer.sequences.producer == PAIR  # never changed by the client alone
    producer.sequences.adopt(NEWER)
    assert producer.send() == [after]
    assert numbers([after]) == [(4, 0)]
    assert not producer.has_gap()


def test_halves_keep_the_numbers_and_what_follows_keeps_its_own() -> None:
    producer = Producer()
    first, second = producer.started(2)
    assert producer.answer(first, BatchResponse(E.MESSAGE_TOO_LARGE)) is ProduceVerdict.SPLIT
    assert producer.answer(second, GAP) is ProduceVerdict.RETRY
    for part in (*first.parts, second):
        assert producer.send() == [part]
        producer.ack(part)
    assert numbers([*first.parts, second]) == [(3, 2), (3, 3), (3, 4)]
    assert not producer.has_gap()
