"""Exactly-once streaming for Python and Spark.

What is named here, in `onceflow.blocking`, `onceflow.spark` and `onceflow.testing` is the public
API; nothing else is. All of it is loaded when it is asked for: importing `onceflow` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker import Broker, BrokerEnded, BrokerMisused, BrokerNotStarted
    from onceflow.client import (
        AbortableError,
        Admin,
        AuthenticationFailed,
        BatchRefused,
        BatchUndone,
        BrokerError,
        BrokerUnreachable,
        BufferFull,
        ClientCollector,
        ClientError,
        CommitFailed,
        ConnectionClosed,
        Consumer,
        ConsumerClosed,
        ConsumerError,
        DeliveryFailed,
        FatalProducerError,
        Fenced,
        FencedMember,
        GroupNotEmpty,
        GroupNotFound,
        LogTruncated,
        NoPosition,
        NoProgress,
        OffsetOutOfRange,
        OffsetsForgotten,
        OffsetToCommit,
        OpenTransaction,
        PreparedTransaction,
        Producer,
        ProducerError,
        RebalanceInProgress,
        RebalanceListener,
        Receipt,
        Record,
        RecordInvalid,
        RecordsUnreadable,
        RequestTimedOut,
        Session,
        SessionError,
        SessionFailed,
        SessionFenced,
        SessionForgotten,
        SessionTransaction,
        TableReceipt,
        TlsFailed,
        TopicNotFound,
        Transaction,
        TransactionAborted,
        TwoPhaseNotServed,
        UnknownOutcome,
        WrongState,
        WrongStep,
        WrongUse,
    )
    from onceflow.errors import InvalidSetting, OnceflowError
    from onceflow.runtime import JsonFormatter
    from onceflow.types import TopicPartition
else:
    __getattr__ = door(
        __name__,
        {
            "broker": "Broker BrokerEnded BrokerMisused BrokerNotStarted",
            "client": "AbortableError Admin AuthenticationFailed BatchRefused BatchUndone "
            "BrokerError BrokerUnreachable BufferFull ClientCollector ClientError "
            "CommitFailed ConnectionClosed Consumer ConsumerClosed ConsumerError "
            "DeliveryFailed FatalProducerError Fenced FencedMember GroupNotEmpty "
            "GroupNotFound LogTruncated NoPosition NoProgress OffsetOutOfRange "
            "OffsetToCommit OffsetsForgotten OpenTransaction PreparedTransaction "
            "Producer ProducerError RebalanceInProgress RebalanceListener Receipt "
            "Record RecordInvalid RecordsUnreadable RequestTimedOut Session "
            "SessionError SessionFailed SessionFenced SessionForgotten "
            "SessionTransaction TableReceipt TlsFailed TopicNotFound "
            "Transaction TransactionAborted TwoPhaseNotServed UnknownOutcome "
            "WrongState WrongStep WrongUse",
            "errors": "InvalidSetting OnceflowError",
            "runtime": "JsonFormatter",
            "types": "TopicPartition",
        },
    )

__version__ = "0.1.0"
__all__ = [
    "Admin",
    "Broker",
    "Consumer",
    "Producer",
    "Session",
    "TopicPartition",
    "__version__",
    # What they take and give.
    "ClientCollector",
    "JsonFormatter",
    "OffsetToCommit",
    "OpenTransaction",
    "PreparedTransaction",
    "RebalanceListener",
    "Receipt",
    "Record",
    "SessionTransaction",
    "TableReceipt",
    "Transaction",
    # What they raise.
    "AbortableError",
    "AuthenticationFailed",
    "BatchRefused",
    "BatchUndone",
    "BrokerEnded",
    "BrokerError",
    "BrokerMisused",
    "BrokerNotStarted",
    "BrokerUnreachable",
    "BufferFull",
    "ClientError",
    "CommitFailed",
    "ConnectionClosed",
    "ConsumerClosed",
    "ConsumerError",
    "DeliveryFailed",
    "FatalProducerError",
    "Fenced",
    "FencedMember",
    "GroupNotEmpty",
    "GroupNotFound",
    "InvalidSetting",
    "LogTruncated",
    "NoPosition",
    "NoProgress",
    "OffsetOutOfRange",
    "OffsetsForgotten",
    "OnceflowError",
    "ProducerError",
    "RebalanceInProgress",
    "RecordInvalid",
    "RecordsUnreadable",
    "RequestTimedOut",
    "SessionError",
    "SessionFailed",
    "SessionFenced",
    "SessionForgotten",
    "TlsFailed",
    "TopicNotFound",
    "TransactionAborted",
    "TwoPhaseNotServed",
    "UnknownOutcome",
    "WrongState",
    "WrongStep",
    "WrongUse",
]
