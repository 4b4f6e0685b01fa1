"""The client's messages, written and read by hand: those of the hot path, those of transactions,
and those about the cluster that every client needs. Bytes and values only; no connection, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.codec.cluster import (
        GROUP as GROUP,
        NO_OFFER as NO_OFFER,
        TRANSACTION as TRANSACTION,
        UNKNOWN_EPOCH as UNKNOWN_EPOCH,
        BrokerOffer as BrokerOffer,
        FoundCoordinator as FoundCoordinator,
        HangingTransaction as HangingTransaction,
        MetadataResponse as MetadataResponse,
        describe_producers_request as describe_producers_request,
        find_coordinator_request as find_coordinator_request,
        list_offset_request as list_offset_request,
        metadata_request as metadata_request,
        offset_fetch_request as offset_fetch_request,
        read_api_versions as read_api_versions,
        write_api_versions as write_api_versions,
    )
    from onceflow.client.codec.consumer_protocol import (
        NO_GENERATION as NO_GENERATION,
        ConsumerProtocolSubscription as ConsumerProtocolSubscription,
        read_assignment as read_assignment,
        read_subscription as read_subscription,
        write_assignment as write_assignment,
        write_subscription as write_subscription,
    )
    from onceflow.client.codec.fetch import (
        FetchAnswer as FetchAnswer,
        FetchFrom as FetchFrom,
        nothing_of as nothing_of,
        read_fetch as read_fetch,
        write_fetch as write_fetch,
    )
    from onceflow.client.codec.produce import (
        ProduceAnswer as ProduceAnswer,
        read_produce as read_produce,
        write_produce as write_produce,
    )
    from onceflow.client.codec.request import Request as Request
    from onceflow.client.codec.transactions import (
        TWO_PHASE as TWO_PHASE,
        AddOffsets as AddOffsets,
        AddPartitions as AddPartitions,
        DescribeTransaction as DescribeTransaction,
        EndTxn as EndTxn,
        GroupMember as GroupMember,
        InitProducerIdRequest as InitProducerIdRequest,
        OffsetsInvalid as OffsetsInvalid,
        OffsetToCommit as OffsetToCommit,
        ProducerIdentity as ProducerIdentity,
        TransactionRequest as TransactionRequest,
        TransactionResponse as TransactionResponse,
        TxnOffsetCommit as TxnOffsetCommit,
        offset_rows as offset_rows,
        producer_id_request as producer_id_request,
        read_answer as read_answer,
        versions_for as versions_for,
    )
    from onceflow.client.codec.versions import (
        NEWEST_WITHOUT_TRANSACTION_V2 as NEWEST_WITHOUT_TRANSACTION_V2,
        SPOKEN as SPOKEN,
        VersionRange as VersionRange,
        choose as choose,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "cluster": "BrokerOffer FoundCoordinator GROUP HangingTransaction "
            "MetadataResponse NO_OFFER TRANSACTION UNKNOWN_EPOCH "
            "describe_producers_request find_coordinator_request "
            "list_offset_request metadata_request offset_fetch_request "
            "read_api_versions write_api_versions",
            "consumer_protocol": "ConsumerProtocolSubscription NO_GENERATION "
            "read_assignment read_subscription write_assignment write_subscription",
            "fetch": "FetchAnswer FetchFrom nothing_of read_fetch write_fetch",
            "produce": "ProduceAnswer read_produce write_produce",
            "request": "Request",
            "transactions": "AddOffsets AddPartitions DescribeTransaction EndTxn "
            "GroupMember InitProducerIdRequest OffsetToCommit OffsetsInvalid "
            "ProducerIdentity TWO_PHASE TransactionRequest TransactionResponse "
            "TxnOffsetCommit offset_rows producer_id_request "
            "read_answer versions_for",
            "versions": "NEWEST_WITHOUT_TRANSACTION_V2 SPOKEN VersionRange choose",
        },
    )
