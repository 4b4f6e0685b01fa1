"""The files of one log: batches, sparse indexes, and searches in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.log.segments.batch_walk import (
        BatchWalk as BatchWalk,
        Facts as Facts,
        facts_of as facts_of,
        read_facts as read_facts,
    )
    from onceflow.log.segments.index import Indexes as Indexes
    from onceflow.log.segments.open_files import MOST_FILES as MOST_FILES, OpenFiles as OpenFiles
    from onceflow.log.segments.record_rows import (
        Rows as Rows,
        address as address,
        read_portions as read_portions,
        read_rows as read_rows,
        section_of as section_of,
    )
    from onceflow.log.segments.segment import (
        CLEANED as CLEANED,
        Segment as Segment,
        scan as scan,
        segment_base as segment_base,
        segment_path as segment_path,
    )
    from onceflow.log.segments.time_search import (
        TimestampedOffset as TimestampedOffset,
        latest_record as latest_record,
        offset_for_time as offset_for_time,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "batch_walk": "BatchWalk Facts facts_of read_facts",
            "index": "Indexes",
            "open_files": "MOST_FILES OpenFiles",
            "record_rows": "Rows address read_portions read_rows section_of",
            "segment": "CLEANED Segment scan segment_base segment_path",
            "time_search": "TimestampedOffset latest_record offset_for_time",
        },
    )
