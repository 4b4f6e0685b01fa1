"""`format("onceflow")`: topics as a source of Spark, for streams and batches. Plans offsets on the
driver and reads exact ranges of them in the tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.spark.source.datasource import (
        OnceflowSource as OnceflowSource,
        StreamReader as StreamReader,
    )
    from onceflow.spark.source.offsets import (
        BatchOffsets as BatchOffsets,
        OffsetSpan as OffsetSpan,
        by_topic as by_topic,
        worth_tasks as worth_tasks,
    )
    from onceflow.spark.source.options import OPTIONS as OPTIONS, SourceOptions as SourceOptions
    from onceflow.spark.source.task import ReadTask as ReadTask
else:
    __getattr__ = door(
        __name__,
        {
            "datasource": "OnceflowSource StreamReader",
            "offsets": "BatchOffsets OffsetSpan by_topic worth_tasks",
            "options": "OPTIONS SourceOptions",
            "task": "ReadTask",
        },
    )
