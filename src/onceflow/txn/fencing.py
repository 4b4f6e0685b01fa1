"""Whom the coordinator listens to, and in which code others are told that it does not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from onceflow.txn.state import TransactionMetadata
from onceflow.wire import NEVER, ApiKey, ErrorCode, ProducerIdAndEpoch

_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
_FENCED = ErrorCode.PRODUCER_FENCED

KNOWN_FROM: Final[Mapping[tuple[ApiKey, ErrorCode], tuple[int, ErrorCode]]] = MappingProxyType(
    {
        (ApiKey.INIT_PRODUCER_ID, _FENCED): (4, _EPOCH),
        (ApiKey.ADD_PARTITIONS_TO_TXN, _FENCED): (2, _EPOCH),
        (ApiKey.ADD_OFFSETS_TO_TXN, _FENCED): (2, _EPOCH),
        (ApiKey.END_TXN, _FENCED): (2, _EPOCH),
        (ApiKey.PRODUCE, _FENCED): (NEVER, _EPOCH),
        (ApiKey.TXN_OFFSET_COMMIT, _FENCED): (NEVER, _EPOCH),
        (ApiKey.WRITE_TXN_MARKERS, _FENCED): (NEVER, _EPOCH),
        (ApiKey.PRODUCE, ErrorCode.TRANSACTION_ABORTABLE): (11, ErrorCode.INVALID_TXN_STATE),
        (ApiKey.PRODUCE, ErrorCode.CONCURRENT_TRANSACTIONS): (12, ErrorCode.NOT_ENOUGH_REPLICAS),
        # A producer knows no coordinator's troubles; this one it takes for a reason to try again.
        (ApiKey.PRODUCE, ErrorCode.COORDINATOR_NOT_AVAILABLE): (
            NEVER,
            ErrorCode.NOT_ENOUGH_REPLICAS,
        ),
        (ApiKey.PRODUCE, ErrorCode.NOT_COORDINATOR): (NEVER, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.TRANSACTION_ABORTABLE): (
            4,
            ErrorCode.INVALID_TXN_STATE,
        ),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): (
            2,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ),
    }
)
"""From which version on a code is told, and which one before."""


def stranger(
    transaction: TransactionMetadata | None, identity: ProducerIdAndEpoch
) -> ErrorCode | None:
    """Why this is not the producer that the coordinator listens to; None when it is."""
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    client = transaction.client
    if identity == client:
        return None
    if identity.producer_id in (client.producer_id, transaction.producer_id):
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING


def code_for(code: ErrorCode, api: ApiKey, version: int) -> ErrorCode:
    """The code as clients of this version know it."""
    known_from, before = KNOWN_FROM.get((api, code), (0, code))
    return code if version >= known_from else before
