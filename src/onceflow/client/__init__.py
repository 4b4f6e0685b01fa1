"""What talks to a broker, ours or Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.address import (
        BrokerAddress as BrokerAddress,
        parse_addresses as parse_addresses,
    )
    from onceflow.client.admin import (
        COUNTED as COUNTED,
        Admin as Admin,
        TransactionNotFound as TransactionNotFound,
        broker_configs as broker_configs,
        committed_offsets as committed_offsets,
        create_topic as create_topic,
        describe_transaction as describe_transaction,
        end_open_transaction as end_open_transaction,
        list_topics as list_topics,
    )
    from onceflow.client.codec import (
        FetchAnswer as FetchAnswer,
        HangingTransaction as HangingTransaction,
        MetadataResponse as MetadataResponse,
        OffsetToCommit as OffsetToCommit,
        ProducerIdentity as ProducerIdentity,
    )
    from onceflow.client.consumer import (
        Consumer as Consumer,
        ConsumerMetrics as ConsumerMetrics,
        ListenerGuard as ListenerGuard,
        PartitionLag as PartitionLag,
        RebalanceListener as RebalanceListener,
        Record as Record,
        columns_of as columns_of,
        fetch as fetch,
        offset_at as offset_at,
        records_of as records_of,
    )
    from onceflow.client.errors import (
        LOST as LOST,
        AbortableError as AbortableError,
        ApiNotServed as ApiNotServed,
        AuthenticationFailed as AuthenticationFailed,
        BrokerError as BrokerError,
        BrokerUnreachable as BrokerUnreachable,
        BufferFull as BufferFull,
        ClientError as ClientError,
        CommitFailed as CommitFailed,
        ConnectionClosed as ConnectionClosed,
        ConsumerClosed as ConsumerClosed,
        ConsumerError as ConsumerError,
        CrossedFork as CrossedFork,
        DeliveryFailed as DeliveryFailed,
        FatalProducerError as FatalProducerError,
        Fenced as Fenced,
        FencedMember as FencedMember,
        GroupNotEmpty as GroupNotEmpty,
        GroupNotFound as GroupNotFound,
        LogTruncated as LogTruncated,
        NoPosition as NoPosition,
        NoSuchPartition as NoSuchPartition,
        OffsetOutOfRange as OffsetOutOfRange,
        ProducerError as ProducerError,
        RangeUnavailable as RangeUnavailable,
        RebalanceInProgress as RebalanceInProgress,
        RecordsUnreadable as RecordsUnreadable,
        RequestTimedOut as RequestTimedOut,
        TlsFailed as TlsFailed,
        TopicNameInvalid as TopicNameInvalid,
        TopicNotFound as TopicNotFound,
        TransactionAborted as TransactionAborted,
        TwoPhaseNotServed as TwoPhaseNotServed,
        UnknownOutcome as UnknownOutcome,
        WrongUse as WrongUse,
    )
    from onceflow.client.group import Subscription as Subscription
    from onceflow.client.net import (
        Backoff as Backoff,
        Cluster as Cluster,
        check as check,
    )
    from onceflow.client.offsets import list_offsets as list_offsets
    from onceflow.client.prepared import PreparedTransaction as PreparedTransaction
    from onceflow.client.producer import (
        Producer as Producer,
        ProducerMetrics as ProducerMetrics,
        Receipt as Receipt,
        RecordInvalid as RecordInvalid,
        TableReceipt as TableReceipt,
        Transaction as Transaction,
    )
    from onceflow.client.prometheus import ClientCollector as ClientCollector
    from onceflow.client.session import (
        Batch as Batch,
        BatchRefused as BatchRefused,
        BatchUndone as BatchUndone,
        NoProgress as NoProgress,
        OffsetsForgotten as OffsetsForgotten,
        Session as Session,
        SessionError as SessionError,
        SessionFailed as SessionFailed,
        SessionFenced as SessionFenced,
        SessionForgotten as SessionForgotten,
        SessionTransaction as SessionTransaction,
        WrongStep as WrongStep,
    )
    from onceflow.client.settings import (
        NONE as NONE,
        ClientSettings as ClientSettings,
        ConsumerSettings as ConsumerSettings,
        ProducerSettings as ProducerSettings,
        ReaderSettings as ReaderSettings,
        catalogue_of as catalogue_of,
    )
    from onceflow.client.transactions import (
        MAY_ABORT as MAY_ABORT,
        Claim as Claim,
        OpenTransaction as OpenTransaction,
        ProducerState as ProducerState,
        TransactionEvent as TransactionEvent,
        WrongState as WrongState,
    )
    from onceflow.client.types import (
        EARLIEST as EARLIEST,
        LATEST as LATEST,
        GroupDescription as GroupDescription,
        GroupOffset as GroupOffset,
        OffsetRange as OffsetRange,
        PartitionTransaction as PartitionTransaction,
        TopicDescription as TopicDescription,
        TopicMetadata as TopicMetadata,
        TransactionDescription as TransactionDescription,
    )
    from onceflow.client.worker import (
        BlockingCluster as BlockingCluster,
        BlockingReader as BlockingReader,
        BlockingWriter as BlockingWriter,
        Range as Range,
        TransactionClient as TransactionClient,
        find_hanging_transactions as find_hanging_transactions,
        offsets_partitions as offsets_partitions,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "address": "BrokerAddress parse_addresses",
            "admin": "Admin COUNTED TransactionNotFound broker_configs "
            "committed_offsets create_topic describe_transaction "
            "end_open_transaction list_topics",
            "codec": "FetchAnswer HangingTransaction MetadataResponse OffsetToCommit "
            "ProducerIdentity",
            "consumer": "Consumer ConsumerMetrics ListenerGuard PartitionLag "
            "RebalanceListener Record columns_of fetch offset_at records_of",
            "errors": "AbortableError ApiNotServed AuthenticationFailed BrokerError "
            "BrokerUnreachable BufferFull ClientError CommitFailed ConnectionClosed "
            "ConsumerClosed ConsumerError CrossedFork DeliveryFailed "
            "FatalProducerError Fenced FencedMember GroupNotEmpty GroupNotFound "
            "LOST LogTruncated NoPosition NoSuchPartition OffsetOutOfRange "
            "ProducerError RangeUnavailable RebalanceInProgress RecordsUnreadable "
            "RequestTimedOut TlsFailed TopicNameInvalid TopicNotFound "
            "TransactionAborted TwoPhaseNotServed UnknownOutcome WrongUse",
            "group": "Subscription",
            "net": "Backoff Cluster check",
            "offsets": "list_offsets",
            "prepared": "PreparedTransaction",
            "producer": "Producer ProducerMetrics Receipt RecordInvalid TableReceipt Transaction",
            "prometheus": "ClientCollector",
            "session": "Batch BatchRefused BatchUndone NoProgress OffsetsForgotten "
            "Session SessionError SessionFailed SessionFenced SessionForgotten "
            "SessionTransaction WrongStep",
            "settings": "ClientSettings ConsumerSettings NONE ProducerSettings ReaderSettings "
            "catalogue_of",
            "transactions": "Claim MAY_ABORT OpenTransaction ProducerState "
            "TransactionEvent WrongState",
            "types": "EARLIEST GroupDescription GroupOffset LATEST OffsetRange "
            "PartitionTransaction TopicDescription TopicMetadata "
            "TransactionDescription",
            "worker": "BlockingCluster BlockingReader BlockingWriter Range "
            "TransactionClient find_hanging_transactions offsets_partitions",
        },
    )
