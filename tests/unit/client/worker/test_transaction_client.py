"""Transactions from a blocking program: what is told before any broker is asked."""

from __future__ import annotations

import os

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.codec.transactions import ProducerIdentity
from onceflow.client.errors.requests import BrokerUnreachable, CrossedFork
from onceflow.client.settings.clients import ProducerSettings
from onceflow.client.transactions.handoff import OpenTransaction
from onceflow.client.transactions.states import ProducerState
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.errors import InvalidSetting

NOBODY = BrokerAddress("127.0.0.1", 1)
OPEN = OpenTransaction(
    transactional_id="payments",
    producer_id=7,
    producer_epoch=3,
    transaction_version=2,
    timeout_ms=60_000,
    bootstrap=(NOBODY,),
)


def test_it_needs_a_transactional_id() -> None:
    with pytest.raises(InvalidSetting, match=r"transactional\.id"):
        TransactionClient(ProducerSettings.of())


def test_it_takes_over_where_another_one_was() -> None:
    with TransactionClient.of(OPEN) as finisher:
        assert finisher.identity == ProducerIdentity("payments", 7, 3)
        assert finisher.state is ProducerState.IN_TRANSACTION


def test_nobody_there_is_told_in_time() -> None:
    settings = ProducerSettings.of(
        bootstrap_servers=str(NOBODY),
        transactional_id="payments",
        delivery_timeout_ms=300,
        request_timeout_ms=300,
        linger_ms=0,
    )
    with (
        TransactionClient(settings) as finisher,
        pytest.raises(BrokerUnreachable, match="check host"),
    ):
        finisher.init()


def test_it_does_not_cross_a_fork() -> None:
    with TransactionClient.of(OPEN) as finisher:
        child = os.fork()
        if not child:
            code = 1
            try:
                finisher.commit()
            except CrossedFork:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
