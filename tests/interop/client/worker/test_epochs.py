"""The end of epochs: after 32 766 of them a transactional id goes on as another producer."""

from __future__ import annotations

import time
from typing import Final

import pytest

from onceflow.client.codec.cluster import TRANSACTION
from onceflow.client.codec.transactions import InitProducerIdRequest, ProducerIdentity, read_answer
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.wire.api import ApiKey
from tests.interop.client.worker.workers import (
    driver,
    epoch_of,
    lose,
    outcome,
    settled,
    topic,
    visible,
    write,
)
from tests.interop.harness import Compare, Names, Transcript

pytestmark = [pytest.mark.interop, pytest.mark.long]

LAST_EPOCH: Final = 32_766
AT_ONCE: Final = 500
VERSION: Final = 5


def use_up_epochs(finisher: TransactionClient) -> None:
    """Asks for epochs, many at a time, until the next one is the last."""
    name = finisher.identity.transactional_id
    deadline = time.monotonic() + 300
    request = InitProducerIdRequest(ProducerIdentity(name), 60_000)
    connection = finisher._cluster.coordinator(TRANSACTION, name, deadline, refind=False)
    epoch = epoch_of(finisher)
    while epoch < LAST_EPOCH - 1:
        number = min(AT_ONCE, LAST_EPOCH - 1 - epoch)
        for _ in range(number):
            connection.send(request.api, VERSION, (request.body(VERSION),), deadline)
        for _ in range(number):
            answer = read_answer(request, VERSION, connection.receive(deadline))
            assert answer.code == 0
        epoch = answer.producer_epoch


def last_epoch(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """The transaction of the last epoch is committed, its lost answer is had again, and the next
    one is of another producer from epoch 0 on."""
    place = topic(names, "out")[0]
    with driver(names, 2) as finisher:
        first = finisher.init().producer_id
        use_up_epochs(finisher)
        transcript.note("last", finisher.init().producer_epoch)
        assert finisher.identity.producer_id == first
        opened = finisher.begin([place])
        write(opened, place, "of the last epoch")
        lose(finisher, ApiKey.END_TXN, 1, answers=True)
        finisher.commit()
        transcript.note("then", epoch_of(finisher))
        assert finisher.identity.producer_id != first
        transcript.note("late", outcome(write, opened, place, "late"))
        write(finisher.begin([place]), place, "of the next producer")
        finisher.commit()
        transcript.note("after that", epoch_of(finisher))
    settled(names, [place])
    transcript.note("visible", visible(names, [place]))


def test_last_epoch(compare: Compare) -> None:
    compare(last_epoch)
