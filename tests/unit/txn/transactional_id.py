"""A transactional id that requests are made on, as a coordinator would: decide, then apply."""

from __future__ import annotations

from itertools import count
from typing import Any

from onceflow.txn.machine import (
    Decision,
    Finish,
    Persist,
    ProducerIdRequest,
    Rejected,
    Result,
    TransactionLimits,
    TransactionMetadata,
    TransactionState,
    add_partitions,
    end,
    init_producer_id,
    time_out,
)
from onceflow.txn.records import decode_value, encode_value
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch

NAME = "orders"
TIMEOUT_MS = 60_000
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TV1, TV2 = 4, 5
"""Versions of EndTxn that stand for the two protocols."""


def held(state: TransactionState, *, epoch: int = 5, **fields: Any) -> TransactionMetadata:
    """Producer 42 at an epoch, in any state."""
    if state not in (
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    ):
        fields.setdefault("partitions", frozenset({A0}))
    return TransactionMetadata(NAME, 42, epoch, TIMEOUT_MS, state, 1_000, **fields)


class Coordinator:
    """One transactional id. New producer ids are 100, 101 and so on."""

    def __init__(
        self,
        transaction: TransactionMetadata | None = None,
        limits: TransactionLimits | None = None,
    ) -> None:
        self.transaction = transaction
        self.limits = limits or TransactionLimits()
        self.now_ms = 2_000
        self.written: list[TransactionMetadata] = []
        self._ids = count(100)

    def new_producer_id(self) -> int:
        return next(self._ids)

    def init(
        self,
        expected: ProducerIdAndEpoch | None = None,
        timeout_ms: int = TIMEOUT_MS,
        **fields: Any,
    ) -> Result | ErrorCode:
        identity = expected or ProducerIdAndEpoch(-1, -1)
        request = ProducerIdRequest(NAME, timeout_ms, *identity, **fields)
        return self.apply(
            init_producer_id(
                self.transaction,
                request,
                now_ms=self.now_ms,
                limits=self.limits,
                new_producer_id=self.new_producer_id,
            )
        )

    def add(
        self, identity: ProducerIdAndEpoch, *partitions: TopicPartition, client_version: int = 2
    ) -> Result | ErrorCode:
        return self.apply(
            add_partitions(
                self.transaction,
                identity,
                partitions,
                now_ms=self.now_ms,
                limits=self.limits,
                client_version=client_version,
            )
        )

    def end(
        self, identity: ProducerIdAndEpoch, commit: bool, version: int = TV2
    ) -> Result | ErrorCode:
        return self.apply(
            end(
                self.transaction,
                identity,
                commit,
                version=version,
                now_ms=self.now_ms,
                new_producer_id=self.new_producer_id,
            )
        )

    def time_out(self) -> Result | ErrorCode:
        decided = time_out(
            self.held,
            self.now_ms,
            new_producer_id=self.new_producer_id,
        )
        return ErrorCode.NONE if decided is None else self.apply(decided)

    def apply(self, decision: Decision) -> Result | ErrorCode:
        """What is answered: a result, or the code that tells there is none."""
        if isinstance(decision, Rejected):
            return decision.code
        if isinstance(decision, Persist):
            self.written = [decision.transaction]
        elif isinstance(decision, Finish):
            self.written = [decision.prepare, decision.complete]
        else:
            self.written = []
        if self.written:
            self.transaction = self.written[-1]
        return decision.result if not decision.result.error else decision.result.error

    def restart(self) -> None:
        """All that is left is what was written."""
        self.transaction = decode_value(NAME, encode_value(self.held))

    @property
    def held(self) -> TransactionMetadata:
        assert self.transaction is not None
        return self.transaction
