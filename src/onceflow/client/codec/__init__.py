"""The client's messages, written and read by hand: those of the hot path, those of transactions,
and the few that a worker process of Spark needs. Bytes and values only; no connection, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.codec.cluster import (
        GROUP as GROUP,
        TRANSACTION as TRANSACTION,
        VERSIONS as VERSIONS,
        Leaders as Leaders,
        read_api_versions as read_api_versions,
        read_find_coordinator as read_find_coordinator,
        read_list_offsets as read_list_offsets,
        read_metadata as read_metadata,
        read_offset_fetch as read_offset_fetch,
        write_api_versions as write_api_versions,
        write_find_coordinator as write_find_coordinator,
        write_list_offsets as write_list_offsets,
        write_metadata as write_metadata,
        write_offset_fetch as write_offset_fetch,
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
        read_answer as read_answer,
        versions_for as versions_for,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "cluster": "GROUP Leaders TRANSACTION VERSIONS read_api_versions "
            "read_find_coordinator read_list_offsets read_metadata "
            "read_offset_fetch write_api_versions write_find_coordinator "
            "write_list_offsets write_metadata write_offset_fetch",
            "consumer_protocol": "ConsumerProtocolSubscription NO_GENERATION "
            "read_assignment read_subscription write_assignment write_subscription",
            "fetch": "FetchAnswer FetchFrom nothing_of read_fetch write_fetch",
            "produce": "ProduceAnswer read_produce write_produce",
            "transactions": "AddOffsets AddPartitions DescribeTransaction EndTxn "
            "GroupMember InitProducerIdRequest OffsetToCommit OffsetsInvalid "
            "ProducerIdentity TWO_PHASE TransactionRequest TransactionResponse "
            "TxnOffsetCommit offset_rows read_answer versions_for",
        },
    )
