"""Record batches as Kafka stores them (magic 2): headers, checksums, codecs and Arrow columns.

Nothing here does I/O or knows the time. numba is imported only by the functions that need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.records.arrow import (
        HEADERS as HEADERS,
        TIMESTAMP as TIMESTAMP,
        one_array as one_array,
    )
    from onceflow.records.batch import (
        CODEC_MASK as CODEC_MASK,
        CONTROL_BIT as CONTROL_BIT,
        DELETE_HORIZON_BIT as DELETE_HORIZON_BIT,
        HEADER_SIZE as HEADER_SIZE,
        LENGTH_PREFIX as LENGTH_PREFIX,
        LOG_APPEND_TIME_BIT as LOG_APPEND_TIME_BIT,
        MAGIC as MAGIC,
        MAX_OFFSET as MAX_OFFSET,
        NO_PRODUCER_EPOCH as NO_PRODUCER_EPOCH,
        NO_PRODUCER_ID as NO_PRODUCER_ID,
        NO_SEQUENCE as NO_SEQUENCE,
        TRANSACTIONAL_BIT as TRANSACTIONAL_BIT,
        BatchHeader as BatchHeader,
        Buffer as Buffer,
        Codec as Codec,
        NewBatch as NewBatch,
        StoredBatch as StoredBatch,
        iter_stored as iter_stored,
        last_sequence as last_sequence,
        next_sequence as next_sequence,
        read_header as read_header,
        seal as seal,
        verify_crc as verify_crc,
    )
    from onceflow.records.columns import (
        Portion as Portion,
        decode as decode,
        decode_portion as decode_portion,
        encode as encode,
        encode_all as encode_all,
    )
    from onceflow.records.compression import (
        DECOMPRESSED_LIMIT as DECOMPRESSED_LIMIT,
        Room as Room,
        compress as compress,
        decompress as decompress,
    )
    from onceflow.records.control import (
        Marker as Marker,
        MarkerType as MarkerType,
        marker as marker,
        parse_marker as parse_marker,
    )
    from onceflow.records.layout import Total as Total
    from onceflow.records.partitioning import (
        coordinator_partition as coordinator_partition,
        partition_by_hash as partition_by_hash,
        partition_for_key as partition_for_key,
        partitions_for_keys as partitions_for_keys,
        stray_partition as stray_partition,
    )
    from onceflow.records.plain import (
        PlainRecord as PlainRecord,
        read_placed as read_placed,
        read_records as read_records,
        unknown_number as unknown_number,
        write_headers as write_headers,
        write_records as write_records,
        write_section as write_section,
    )
    from onceflow.records.raw_memory import (
        as_i64 as as_i64,
        copy_exact as copy_exact,
        helper as helper,
        kernel as kernel,
        load_big_i16 as load_big_i16,
        load_big_i32 as load_big_i32,
        load_big_i64 as load_big_i64,
        load_i64 as load_i64,
        load_u8 as load_u8,
        prefetch as prefetch,
        store_i64 as store_i64,
        store_u8 as store_u8,
    )
    from onceflow.records.scalar import explain as explain
    from onceflow.records.validate import (
        RecordsSummary as RecordsSummary,
        read_kernels as read_kernels,
        validate_records as validate_records,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "arrow": "HEADERS TIMESTAMP one_array",
            "batch": "BatchHeader Buffer CODEC_MASK CONTROL_BIT Codec "
            "DELETE_HORIZON_BIT HEADER_SIZE LENGTH_PREFIX LOG_APPEND_TIME_BIT MAGIC "
            "MAX_OFFSET NO_PRODUCER_EPOCH NO_PRODUCER_ID NO_SEQUENCE NewBatch "
            "StoredBatch TRANSACTIONAL_BIT iter_stored last_sequence next_sequence "
            "read_header seal verify_crc",
            "columns": "Portion decode decode_portion encode encode_all",
            "compression": "DECOMPRESSED_LIMIT Room compress decompress",
            "control": "Marker MarkerType marker parse_marker",
            "layout": "Total",
            "partitioning": "coordinator_partition partition_by_hash partition_for_key "
            "partitions_for_keys stray_partition",
            "plain": "PlainRecord read_placed read_records unknown_number write_headers "
            "write_records write_section",
            "raw_memory": "as_i64 copy_exact helper kernel load_big_i16 load_big_i32 "
            "load_big_i64 load_i64 load_u8 prefetch store_i64 store_u8",
            "scalar": "explain",
            "validate": "RecordsSummary read_kernels validate_records",
        },
    )
