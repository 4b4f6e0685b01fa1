"""Which producer the coordinator accepts, and the error code that every other one gets."""

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
        # A producer does not expect a coordinator's errors from Produce. NOT_ENOUGH_REPLICAS is
        # retriable and says that nothing was written, which is so.
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
"""The first version that knows a code, and the code that older clients get instead."""


def stranger(
    transaction: TransactionMetadata | None, identity: ProducerIdAndEpoch
) -> ErrorCode | None:
    """Why the coordinator does not accept this producer; None when it does."""
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    client = transaction.client
    if identity == client:
        return None
    # Clients take this code as final, so only producer ids that this transactional id knows get
    # it; any other id is merely unknown here.
    if identity.producer_id in (client.producer_id, transaction.producer_id):
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING


def code_for(code: ErrorCode, api: ApiKey, version: int) -> ErrorCode:
    """The code as clients of this version know it."""
    known_from, before = KNOWN_FROM.get((api, code), (0, code))
    return code if version >= known_from else before
