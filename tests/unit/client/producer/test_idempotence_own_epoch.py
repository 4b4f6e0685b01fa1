"""Sequences where every transaction has its own epoch, so that brokers know what comes first."""

from __future__ import annotations

from onceflow.client.producer.idempotence import BatchResponse, ProduceVerdict
from onceflow.wire.error_codes import ErrorCode as E
from tests.unit.client.producer.numbered_batches import GAP, NEWER, Producer, numbers


def test_the_first_batch_is_not_waited_for() -> None:
    """Brokers insist on 0 then: whatever comes before it is refused, and has its turn again."""
    producer = Producer(transactional=True)
    producer.sequences.adopt(NEWER, has_own_epoch=True)
    first, second, third = producer.put(3)
    assert producer.send() == [first, second, third]
    assert numbers([first, second, third]) == [(4, 0), (4, 2), (4, 4)]
    too_soon = BatchResponse(E.CONCURRENT_TRANSACTIONS)
    assert producer.answer(first, too_soon) is ProduceVerdict.RETRY
    assert producer.answer(second, GAP) is ProduceVerdict.RETRY
    assert producer.send() == [first]
    assert producer.answer(third, GAP) is ProduceVerdict.RETRY
    for batch, following in ((first, [second]), (second, [third]), (third, [])):
        producer.ack(batch)
        assert producer.send() == following
    assert not producer.has_gap()
