"""What Spark's users see when something goes wrong: the cause first, in a sentence, with advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.spark.errors.cause import (
        RAISED as RAISED,
        SOURCE_GONE as SOURCE_GONE,
        blame as blame,
        cause_of as cause_of,
        explain as explain,
        find_cause as find_cause,
        is_source_gone as is_source_gone,
        raises_briefly as raises_briefly,
        without_stack as without_stack,
    )
    from onceflow.spark.errors.pipeline import (
        InvalidPipeline as InvalidPipeline,
        KeyPath as KeyPath,
        KeyProblem as KeyProblem,
        MasterRefused as MasterRefused,
        PipelineError as PipelineError,
        PipelineFailed as PipelineFailed,
        SparkMissing as SparkMissing,
    )
    from onceflow.spark.errors.sink import (
        AttemptRefused as AttemptRefused,
        BatchFailed as BatchFailed,
        BatchTimedOut as BatchTimedOut,
        ClaimsUnreachable as ClaimsUnreachable,
        CommitUnclear as CommitUnclear,
        EndUnknown as EndUnknown,
        IdentityChanged as IdentityChanged,
        LaterAttempt as LaterAttempt,
        LedgerConflict as LedgerConflict,
        LedgerMalformed as LedgerMalformed,
        ReportsWrong as ReportsWrong,
        RowRefused as RowRefused,
        SinkError as SinkError,
        SinkFenced as SinkFenced,
        SinkRefused as SinkRefused,
    )
    from onceflow.spark.errors.source import (
        DataLost as DataLost,
        InvalidOptions as InvalidOptions,
        NoOffsetAtTime as NoOffsetAtTime,
        OffsetsUnreadable as OffsetsUnreadable,
        PartitionsDiffer as PartitionsDiffer,
        SourceError as SourceError,
        TopicRecreated as TopicRecreated,
        TopicsUnsettled as TopicsUnsettled,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "cause": "RAISED SOURCE_GONE blame cause_of explain find_cause "
            "is_source_gone raises_briefly without_stack",
            "pipeline": "InvalidPipeline KeyPath KeyProblem MasterRefused PipelineError "
            "PipelineFailed SparkMissing",
            "sink": "AttemptRefused BatchFailed BatchTimedOut ClaimsUnreachable "
            "CommitUnclear EndUnknown IdentityChanged LaterAttempt LedgerConflict "
            "LedgerMalformed ReportsWrong RowRefused SinkError SinkFenced "
            "SinkRefused",
            "source": "DataLost InvalidOptions NoOffsetAtTime OffsetsUnreadable "
            "PartitionsDiffer SourceError TopicRecreated TopicsUnsettled",
        },
    )
