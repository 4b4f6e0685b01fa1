"""What the coordinator can decide, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from onceflow.txn.state import NONE, TransactionMetadata
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """The settings that decisions depend on."""

    max_timeout_ms: int = 900_000
    max_partitions_per_transaction: int = 10_000
    two_phase_commit_enabled: bool = False


class Result(NamedTuple):
    """The answer: an identity, or an error that goes with a change."""

    producer_id: int = NONE
    epoch: int = NONE
    ongoing_producer_id: int = NONE
    """With `ongoing_epoch`: the identity of the prepared transaction that was kept."""
    ongoing_epoch: int = NONE
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Rejected:
    """Nothing changes; the answer is the error."""

    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Answered:
    """Nothing changes: an earlier request has already done this."""

    result: Result


@dataclass(frozen=True, slots=True)
class Persist:
    """A new state to persist, then to answer."""

    transaction: TransactionMetadata
    result: Result


@dataclass(frozen=True, slots=True)
class Finish:
    """Write `prepare`; a marker of its producer id and epoch to each partition; `complete`; then
    answer."""

    prepare: TransactionMetadata
    complete: TransactionMetadata
    commit: bool
    partitions: tuple[TopicPartition, ...]
    """In a fixed order: a start that finishes the transaction writes the same markers."""
    result: Result


Decision: TypeAlias = Rejected | Answered | Persist | Finish
