"""The Kafka protocol as bytes: frames, headers, messages. No sockets, no state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.wire.api import NEVER as NEVER, ApiKey as ApiKey, is_flexible as is_flexible
    from onceflow.wire.codec import (
        decode as decode,
        encode as encode,
        message_class as message_class,
        prepare_writing as prepare_writing,
    )
    from onceflow.wire.describe_producers import (
        DescribedPartition as DescribedPartition,
        ProducerRow as ProducerRow,
        write_describe_producers_response as write_describe_producers_response,
        write_producers as write_producers,
    )
    from onceflow.wire.error_codes import ErrorCode as ErrorCode, error_code as error_code
    from onceflow.wire.fetch import (
        FETCH_FLEXIBLE_FROM as FETCH_FLEXIBLE_FROM,
        FetchPartition as FetchPartition,
        FetchRequest as FetchRequest,
        FetchResponse as FetchResponse,
        FetchResult as FetchResult,
        read_fetch_request as read_fetch_request,
        write_fetch_response as write_fetch_response,
    )
    from onceflow.wire.frame import PREFIX as PREFIX, FrameReader as FrameReader, Scratch as Scratch
    from onceflow.wire.header import (
        RequestHeader as RequestHeader,
        read_request_header as read_request_header,
        response_tags as response_tags,
    )
    from onceflow.wire.primitives import (
        INT16 as INT16,
        INT32 as INT32,
        LONGEST_NAME as LONGEST_NAME,
        LONGEST_STRING as LONGEST_STRING,
        MOST_ELEMENTS as MOST_ELEMENTS,
        count as count,
        read_count as read_count,
        read_int as read_int,
        read_slice as read_slice,
        read_text as read_text,
        read_uvarint as read_uvarint,
        skip_tags as skip_tags,
        text as text,
        uvarint as uvarint,
    )
    from onceflow.wire.produce import (
        PRODUCE_FLEXIBLE_FROM as PRODUCE_FLEXIBLE_FROM,
        PartitionRecords as PartitionRecords,
        ProduceRequest as ProduceRequest,
        ProduceResponse as ProduceResponse,
        ProduceResult as ProduceResult,
        TopicRef as TopicRef,
        read_produce_request as read_produce_request,
        write_produce_response as write_produce_response,
    )
    from onceflow.wire.schema import message_class_in as message_class_in, recast as recast
    from onceflow.wire.transactions import (
        END_WITH_NEW_EPOCH_FROM as END_WITH_NEW_EPOCH_FROM,
        IMPLICIT_OFFSETS_FROM as IMPLICIT_OFFSETS_FROM,
        IMPLICIT_PRODUCE_FROM as IMPLICIT_PRODUCE_FROM,
        LAST_EPOCH as LAST_EPOCH,
        MAX_IN_FLIGHT as MAX_IN_FLIGHT,
        TRANSACTION_V2 as TRANSACTION_V2,
        ProducerIdAndEpoch as ProducerIdAndEpoch,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "api": "ApiKey NEVER is_flexible",
            "codec": "decode encode message_class prepare_writing",
            "describe_producers": "DescribedPartition ProducerRow "
            "write_describe_producers_response write_producers",
            "error_codes": "ErrorCode error_code",
            "fetch": "FETCH_FLEXIBLE_FROM FetchPartition FetchRequest FetchResponse "
            "FetchResult read_fetch_request write_fetch_response",
            "frame": "FrameReader PREFIX Scratch",
            "header": "RequestHeader read_request_header response_tags",
            "primitives": "INT16 INT32 LONGEST_NAME LONGEST_STRING MOST_ELEMENTS count read_count "
            "read_int read_slice read_text read_uvarint skip_tags text uvarint",
            "produce": "PRODUCE_FLEXIBLE_FROM PartitionRecords ProduceRequest "
            "ProduceResponse ProduceResult TopicRef read_produce_request "
            "write_produce_response",
            "schema": "message_class_in recast",
            "transactions": "END_WITH_NEW_EPOCH_FROM IMPLICIT_OFFSETS_FROM "
            "IMPLICIT_PRODUCE_FROM LAST_EPOCH MAX_IN_FLIGHT ProducerIdAndEpoch "
            "TRANSACTION_V2",
        },
    )
