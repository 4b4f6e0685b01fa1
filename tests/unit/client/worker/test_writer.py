"""A blocking writer against a broker by script: what is sent when, and when an attempt is over."""

from __future__ import annotations

import os
import pickle
import time
from typing import Any

import pytest

from onceflow.client.codec.versions import SPOKEN, VersionRange
from onceflow.client.errors.requests import (
    AbortableError,
    ApiNotServed,
    ClientError,
    CrossedFork,
    DeliveryFailed,
)
from onceflow.client.transactions.handoff import Claim, NotClaimed
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.client.worker.connection import BlockingConnection
from onceflow.client.worker.partition_queue import WriteResult
from onceflow.client.worker.writer import AttemptEnded, BlockingWriter
from onceflow.runtime.clock import RealClock
from onceflow.runtime.rand import RealRand
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode as E
from tests.unit.client.worker.socket_broker import (
    BILLS,
    ORDERS,
    Script,
    ScriptedBroker,
    accept,
    hang_up,
    opened,
    patience,
    refuse,
    rows,
)

BATCH = 1000
"""Bytes; ten rows of a hundred bytes are more than one batch of these."""


def test_partitions_go_in_one_request_and_only_what_was_refused_goes_again_unchanged() -> None:
    with ScriptedBroker(
        refuse(E.NOT_ENOUGH_REPLICAS, ORDERS), refuse(E.CONCURRENT_TRANSACTIONS), accept
    ) as broker:
        with BlockingWriter(opened(broker), patience()) as writer:
            writer.write(*ORDERS, rows(3))
            writer.write(*BILLS, rows(2))
            assert not broker.produced, "nothing is sent before it has to be"
            written = writer.flush()
            assert writer.flush() == written
        assert [set(seen.batches) for seen in broker.produced] == [
            {ORDERS, BILLS},
            {ORDERS},
            {ORDERS},
        ]
        assert len({seen.batches[ORDERS] for seen in broker.produced}) == 1
        assert {seen.transactional_id for seen in broker.produced} == {"payments"}
    assert written == (WriteResult(BILLS, 2, 0, 1, 1), WriteResult(ORDERS, 3, 0, 2, 2))


MUCH = rows(4, 400_000)
"""Enough to be sent before it has to be, in four batches."""


def test_what_is_much_is_under_way_before_it_has_to_be() -> None:
    with ScriptedBroker() as broker:
        with BlockingWriter(opened(broker), patience(), max_batch_bytes=BATCH) as writer:
            writer.write(*ORDERS, MUCH)
            broker.until_produced(1)
            writer.write(*ORDERS, MUCH)
            assert writer.flush() == (WriteResult(ORDERS, 8, 0, 7, 7),)
        assert broker.sequences(ORDERS) == list(range(8))


@pytest.mark.parametrize("trouble", [refuse(E.NOT_ENOUGH_REPLICAS), hang_up])
def test_what_was_refused_waits_until_all_has_to_be_delivered(trouble: Script) -> None:
    with ScriptedBroker(trouble, accept) as broker:
        with BlockingWriter(opened(broker), patience(), max_batch_bytes=BATCH) as writer:
            for _ in range(3):
                writer.write(*ORDERS, MUCH)
                broker.until_produced(1)
            assert len(broker.produced) == 1
            assert writer.flush()[0].records == 12
        assert broker.sequences(ORDERS) == [0, *range(12)]


def test_a_refusal_for_good_is_told_by_a_later_write() -> None:
    with ScriptedBroker(refuse(E.PRODUCER_FENCED)) as broker:
        with BlockingWriter(opened(broker), patience(), max_batch_bytes=BATCH) as writer:
            with pytest.raises(AttemptEnded):
                writer.write(*ORDERS, [MUCH] * 100)  # the answer may be under way for a while
            with pytest.raises(AttemptEnded):
                writer.flush()
        assert len(broker.produced) == 1


@pytest.mark.parametrize(("version", "expected"), [(1, 11), (2, 12)])
def test_the_version_of_produce_is_that_of_the_protocol(version: int, expected: int) -> None:
    with ScriptedBroker() as broker, BlockingWriter(opened(broker, version), patience()) as writer:
        writer.write(*ORDERS, rows(1))
        writer.flush()
        assert [seen.version for seen in broker.produced] == [expected]


def test_a_broker_without_the_protocol_is_refused() -> None:
    offer = {**SPOKEN, ApiKey.PRODUCE: VersionRange(3, 11)}
    with (
        ScriptedBroker(offer=offer) as broker,
        BlockingWriter(opened(broker), patience()) as writer,
    ):
        writer.write(*ORDERS, rows(1))
        with pytest.raises(ApiNotServed):
            writer.flush()


def test_one_batch_is_under_way_until_the_first_is_acknowledged_then_five() -> None:
    with ScriptedBroker(hold=[2]) as broker:
        with BlockingWriter(opened(broker), patience(0.2), max_batch_bytes=BATCH) as writer:
            writer.write(*ORDERS, rows(2, BATCH))
            with pytest.raises(DeliveryFailed, match="did not answer"):
                writer.flush()
        assert len(broker.held) == 1
    # Now it answers when it holds one, then five more: fewer under way would wait for ever.
    with ScriptedBroker(hold=[1, 5]) as broker:
        with BlockingWriter(opened(broker), patience(), max_batch_bytes=BATCH) as writer:
            writer.write(*ORDERS, rows(6, BATCH))
            assert writer.flush() == (WriteResult(ORDERS, 6, 0, 5, 5),)
        assert broker.sequences(ORDERS) == [0, 1, 2, 3, 4, 5]


def test_behind_a_refused_batch_all_are_sent_again_one_at_a_time_in_order() -> None:
    gap = refuse(E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    with ScriptedBroker(
        accept, refuse(E.NOT_ENOUGH_REPLICAS), gap, gap, accept, hold=[1, 3, 1, 1, 1]
    ) as broker:
        with BlockingWriter(opened(broker), patience(), max_batch_bytes=BATCH) as writer:
            writer.write(*ORDERS, rows(4, BATCH))
            assert writer.flush()[0].records == 4
        assert broker.sequences(ORDERS) == [0, 1, 2, 3, 1, 2, 3]


def test_a_dead_connection_and_a_new_leader_get_the_same_bytes() -> None:
    with (
        ScriptedBroker() as second,
        ScriptedBroker(hang_up, refuse(E.NOT_LEADER_OR_FOLLOWER)) as first,
    ):
        with BlockingWriter(opened(first), patience()) as writer:
            writer.write(*ORDERS, rows(3))
            first.leaders[BILLS] = second.address

            def moved(batches: object) -> dict[object, int]:
                first.leaders[ORDERS] = second.address
                return {ORDERS: E.NOT_LEADER_OR_FOLLOWER}

            first.scripts[1] = moved
            writer.flush()
        assert len(first.produced) == 2
        assert {seen.batches[ORDERS] for seen in (*first.produced, *second.produced)} == {
            second.produced[0].batches[ORDERS]
        }
        assert first.asked.count(ApiKey.METADATA) >= 2


def test_a_connection_that_ends_with_several_requests_under_way_is_no_failure() -> None:
    """The answer to the first tells; those behind it are in doubt as well, and go again."""
    with ScriptedBroker(accept, hang_up, accept, hold=[1, 3]) as broker:
        with BlockingWriter(opened(broker), patience(), max_batch_bytes=BATCH) as writer:
            writer.write(*ORDERS, rows(4, BATCH))
            assert writer.flush()[0].records == 4
        assert broker.sequences(ORDERS)[-3:] == [1, 2, 3]
        assert len({seen.batches[ORDERS] for seen in broker.produced}) == 4


def test_a_request_for_which_no_time_was_left_does_not_take_the_next_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedBroker() as broker:
        with BlockingWriter(opened(broker), patience()) as writer:
            writer.write(*ORDERS, rows(1))
            in_time = BlockingConnection.send
            late = iter([0.0])

            def send(
                self: BlockingConnection, key: ApiKey, version: int, body: Any, deadline: float
            ) -> None:
                is_late = key is ApiKey.PRODUCE
                in_time(self, key, version, body, next(late, deadline) if is_late else deadline)

            monkeypatch.setattr(BlockingConnection, "send", send)
            (written, *_) = writer.flush()
        assert (written.records, len(broker.produced)) == (1, 1)


def test_a_broker_that_is_coming_up_is_waited_for() -> None:
    with ScriptedBroker() as broker, BlockingWriter(opened(broker), patience()) as writer:
        broker.slams = 3
        writer.write(*ORDERS, rows(1))
        assert writer.flush()[0].records == 1


@pytest.mark.parametrize(
    "code",
    [
        E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        E.INVALID_PRODUCER_EPOCH,
        E.INVALID_TXN_STATE,
        E.INVALID_PRODUCER_ID_MAPPING,
        E.PRODUCER_FENCED,
        E.TRANSACTION_ABORTABLE,
    ],
)
def test_what_ends_an_attempt_ends_it_at_once_and_for_good(code: int) -> None:
    with (
        ScriptedBroker(refuse(code)) as broker,
        BlockingWriter(opened(broker), patience()) as writer,
    ):
        writer.write(*ORDERS, rows(1))
        for _ in range(2):
            with pytest.raises(AttemptEnded, match="payments") as problem:
                writer.flush()
        with pytest.raises(AttemptEnded):
            writer.write(*BILLS, rows(1))
        assert len(broker.produced) == 1
        assert str(pickle.loads(pickle.dumps(problem.value))) == str(problem.value)


def test_what_can_never_be_written_is_told_at_once() -> None:
    with ScriptedBroker(refuse(E.MESSAGE_TOO_LARGE)) as broker:
        with BlockingWriter(opened(broker), patience()) as writer:
            writer.write(*ORDERS, rows(1))
            with pytest.raises(AbortableError, match=r"max\.message\.bytes"):
                writer.flush()
        assert len(broker.produced) == 1


def test_a_duplicate_counts_as_written() -> None:
    script = refuse(E.DUPLICATE_SEQUENCE_NUMBER)
    with ScriptedBroker(script) as broker, BlockingWriter(opened(broker), patience()) as writer:
        writer.write(*ORDERS, rows(4))
        assert writer.flush() == (WriteResult(ORDERS, 4, -1, -1, 3),)


def test_time_is_limited_and_the_error_says_what_was_in_the_way() -> None:
    script = refuse(E.NOT_ENOUGH_REPLICAS)
    with ScriptedBroker(script) as broker, BlockingWriter(opened(broker), patience(4.0)) as writer:
        writer.write(*ORDERS, rows(1))
        began = time.monotonic()
        with pytest.raises(DeliveryFailed, match=r"orders-0.*NOT_ENOUGH_REPLICAS") as problem:
            writer.flush()
        assert time.monotonic() - began < 15, "it has the patience of the other tests"
    assert problem.value.outcome == "unknown"


def test_a_partition_that_was_not_claimed_is_refused_before_anything_is_sent() -> None:
    with ScriptedBroker() as broker:
        writer = BlockingWriter(opened(broker).only([ORDERS]), patience())
        with pytest.raises(NotClaimed):
            writer.write(*BILLS, rows(1))
        assert not broker.asked


def test_sequences_go_on_from_the_claim_and_are_handed_on() -> None:
    with ScriptedBroker() as broker:
        with BlockingWriter(opened(broker), patience()) as writer:
            writer.write(*ORDERS, [rows(2), rows(3)])
            writer.flush()
            handed_on = writer.transaction
        assert handed_on.claims == (Claim(ORDERS, 5), Claim(BILLS, 0))
        with BlockingWriter(handed_on, patience()) as writer:
            writer.write(*ORDERS, rows(1))
            assert writer.flush()[0].last_sequence == 5
        assert broker.sequences(ORDERS) == [0, 2, 5]


def test_much_is_sent_before_flush_is_called() -> None:
    with ScriptedBroker() as broker:
        settings = patience(buffer_memory=10 * BATCH, max_request_size=BATCH, batch_size=BATCH)
        with BlockingWriter(opened(broker), settings, max_batch_bytes=BATCH) as writer:
            writer.write(*ORDERS, [rows(1, BATCH)] * 30)
            assert len(broker.produced) >= 15
            assert writer.flush()[0].records == 30
        assert broker.sequences(ORDERS) == list(range(30))


def test_a_writer_does_not_cross_a_fork() -> None:
    with ScriptedBroker() as broker, BlockingWriter(opened(broker), patience()) as writer:
        writer.write(*ORDERS, rows(1))
        child = os.fork()
        if not child:
            code = 1
            try:
                writer.flush()
            except CrossedFork:
                code = 0
            except ClientError:
                code = 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert writer.flush()[0].records == 1
        assert len(broker.produced) == 1


def test_lent_connections_stay_open_unless_answers_are_still_to_come() -> None:
    with ScriptedBroker(hold=(1, 1, 2)) as broker:
        settings, transaction = patience(), opened(broker)
        cluster = BlockingCluster(transaction.bootstrap, settings, RealClock(), RealRand())
        for _ in range(2):
            with BlockingWriter(transaction, settings, cluster=cluster) as writer:
                writer.write(*ORDERS, rows(1))
                writer.flush()
        leader = cluster.leader(ORDERS, time.monotonic() + 5)
        assert broker.asked.count(ApiKey.API_VERSIONS) == 1
        with BlockingWriter(
            transaction, settings, max_batch_bytes=BATCH, cluster=cluster
        ) as writer:
            writer.write(*ORDERS, MUCH)
            broker.until_held(1)
        assert not leader.is_open
