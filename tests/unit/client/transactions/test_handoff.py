"""An open transaction as a value that other processes are given."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.codec.transactions import ProducerIdentity
from onceflow.client.transactions.handoff import (
    Claim,
    NotClaimed,
    OpenTransaction,
    OpenTransactionMalformed,
)
from onceflow.types import TopicPartition

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 3)
OPEN = OpenTransaction(
    transactional_id="payments",
    producer_id=7,
    producer_epoch=3,
    transaction_version=2,
    timeout_ms=60_000,
    bootstrap=(BrokerAddress("a", 9092), BrokerAddress("::1", 9093)),
    claims=(Claim(ORDERS), Claim(BILLS, 12)),
)


def test_it_comes_back_as_it_was() -> None:
    assert OpenTransaction.from_json(OPEN.to_json()) == OPEN
    assert OpenTransaction.from_json(OPEN.to_json().encode()) == OPEN
    assert pickle.loads(pickle.dumps(OPEN)) == OPEN
    assert hash(OPEN) == hash(pickle.loads(pickle.dumps(OPEN)))
    with pytest.raises(AttributeError):
        OPEN.producer_epoch = 4  # type: ignore[misc]  # that is what is tried


def test_what_it_says() -> None:
    assert OPEN.identity == ProducerIdentity("payments", 7, 3)
    assert OPEN.partitions == (ORDERS, BILLS)
    assert OPEN.next_sequence(BILLS) == 12
    assert OPEN.has_own_epoch


def test_a_part_of_it_is_for_some_partitions_only() -> None:
    part = OPEN.only([BILLS])
    assert part.claims == (Claim(BILLS, 12),)
    with pytest.raises(NotClaimed, match="orders-0"):
        part.next_sequence(ORDERS)
    with pytest.raises(NotClaimed, match="orders-0"):
        part.only([ORDERS])


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("transactional_id", "", "transactional_id"),
        ("transactional_id", 5, "transactional_id"),
        ("producer_id", -1, "producer_id"),
        ("producer_id", "7", "producer_id"),
        ("producer_epoch", True, "producer_epoch"),
        ("producer_epoch", 32_768, "producer_epoch"),
        ("producer_epoch", 1.0, "producer_epoch"),
        ("transaction_version", 3, "transaction_version"),
        ("timeout_ms", 0, "timeout_ms"),
        ("bootstrap", [], "bootstrap"),
        ("bootstrap", "a:9092", "bootstrap"),
        ("bootstrap", [["a"]], "bootstrap"),
        ("bootstrap", [["a", 70_000]], "bootstrap"),
        ("claims", [["orders", 0]], "claims"),
        ("claims", [["orders", 0, -1]], "claims"),
        ("claims", [["orders", 0, 0], ["orders", 0, 1]], "claimed twice"),
        ("claims", None, "claims"),
        ("format", 2, "format 2"),
        ("kind", "another", "not an open transaction"),
        ("surplus", 1, "surplus"),
    ],
)
def test_what_is_wrong_is_named(field: str, value: Any, told: str) -> None:
    fields = json.loads(OPEN.to_json())
    fields[field] = value
    with pytest.raises(OpenTransactionMalformed, match=told):
        OpenTransaction.from_json(json.dumps(fields))


def test_what_is_missing_is_named() -> None:
    fields = json.loads(OPEN.to_json())
    del fields["producer_epoch"]
    with pytest.raises(OpenTransactionMalformed, match="producer_epoch"):
        OpenTransaction.from_json(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff", "[" * 100_000])
def test_what_is_no_json_of_ours_is_refused(text: str | bytes) -> None:
    with pytest.raises(OpenTransactionMalformed):
        OpenTransaction.from_json(text)
