"""What a client can raise, and what is done about it.

`requests` has what can go wrong between a client and a broker, `table` what an error code in an
answer means to each API: try again, look for the coordinator, abort, or give up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.errors.consumer import (
        CommitFailed as CommitFailed,
        ConsumerClosed as ConsumerClosed,
        ConsumerError as ConsumerError,
        FencedMember as FencedMember,
        LogTruncated as LogTruncated,
        NoPosition as NoPosition,
        NotAssigned as NotAssigned,
        OffsetOutOfRange as OffsetOutOfRange,
        RangeUnavailable as RangeUnavailable,
        RebalanceInProgress as RebalanceInProgress,
        RecordsUnreadable as RecordsUnreadable,
        WrongUse as WrongUse,
    )
    from onceflow.client.errors.requests import (
        LOST as LOST,
        AbortableError as AbortableError,
        AnswerMalformed as AnswerMalformed,
        ApiNotServed as ApiNotServed,
        AuthenticationFailed as AuthenticationFailed,
        BrokerError as BrokerError,
        BrokerUnreachable as BrokerUnreachable,
        BufferFull as BufferFull,
        ClientError as ClientError,
        ConnectionClosed as ConnectionClosed,
        ConnectionLost as ConnectionLost,
        CrossedFork as CrossedFork,
        DeliveryFailed as DeliveryFailed,
        FatalProducerError as FatalProducerError,
        Fenced as Fenced,
        GroupNotEmpty as GroupNotEmpty,
        GroupNotFound as GroupNotFound,
        NoSuchPartition as NoSuchPartition,
        NotKafka as NotKafka,
        Outcome as Outcome,
        ProducerError as ProducerError,
        RequestTimedOut as RequestTimedOut,
        TlsFailed as TlsFailed,
        TopicNameInvalid as TopicNameInvalid,
        TopicNotFound as TopicNotFound,
        TransactionAborted as TransactionAborted,
        TwoPhaseNotServed as TwoPhaseNotServed,
        UnknownOutcome as UnknownOutcome,
        action_for as action_for,
        producer_error as producer_error,
    )
    from onceflow.client.errors.table import (
        Action as Action,
        action as action,
        outcome_of as outcome_of,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "consumer": "CommitFailed ConsumerClosed ConsumerError FencedMember "
            "LogTruncated NoPosition NotAssigned OffsetOutOfRange RangeUnavailable "
            "RebalanceInProgress RecordsUnreadable WrongUse",
            "requests": "AbortableError AnswerMalformed ApiNotServed "
            "AuthenticationFailed BrokerError BrokerUnreachable BufferFull "
            "ClientError ConnectionClosed ConnectionLost CrossedFork DeliveryFailed "
            "FatalProducerError Fenced GroupNotEmpty GroupNotFound LOST "
            "NoSuchPartition NotKafka Outcome ProducerError RequestTimedOut "
            "TlsFailed TopicNameInvalid TopicNotFound TransactionAborted "
            "TwoPhaseNotServed UnknownOutcome action_for producer_error",
            "table": "Action action outcome_of",
        },
    )
