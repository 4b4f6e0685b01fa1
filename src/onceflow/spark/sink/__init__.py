"""Frames into topics, exactly once: a micro-batch is one transaction with its offsets and its
ledger inside. `batch` runs one, `ledger` says what was committed, `claims` who may write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.spark.sink.api import (
        starting_offsets as starting_offsets,
        write as write,
        write_stream as write_stream,
    )
    from onceflow.spark.sink.claims import (
        AttemptFailure as AttemptFailure,
        ClaimService as ClaimService,
    )
    from onceflow.spark.sink.identity import QUERY_NAME as QUERY_NAME, SinkIdentity as SinkIdentity
    from onceflow.spark.sink.job import (
        QUERY_ID as QUERY_ID,
        TOKEN as TOKEN,
        run_job as run_job,
        writing_in_plan as writing_in_plan,
    )
    from onceflow.spark.sink.job_context import (
        ALL_ROWS as ALL_ROWS,
        REPORT as REPORT,
        Report as Report,
        pickled as pickled,
        unpickled as unpickled,
    )
    from onceflow.spark.sink.options import (
        ARGUMENTS as ARGUMENTS,
        LEDGER_TOPIC as LEDGER_TOPIC,
        TRANSACTION_TIMEOUT_MS as TRANSACTION_TIMEOUT_MS,
        SinkOptions as SinkOptions,
        checked_options as checked_options,
    )
    from onceflow.spark.sink.preflight import (
        BrokerLimits as BrokerLimits,
        check_spark as check_spark,
        prepare_cluster as prepare_cluster,
        producer_settings as producer_settings,
        run_on_own_thread as run_on_own_thread,
    )
    from onceflow.spark.sink.query import SinkWriter as SinkWriter
    from onceflow.spark.sink.routing import TARGET as TARGET, TopicLayout as TopicLayout
    from onceflow.spark.sink.run import QueryStopped as QueryStopped, StreamRun as StreamRun
    from onceflow.spark.sink.task import MadeRows as MadeRows, TaskFunction as TaskFunction
    from onceflow.spark.sink.topics import SinkTopics as SinkTopics
else:
    __getattr__ = door(
        __name__,
        {
            "api": "starting_offsets write write_stream",
            "claims": "AttemptFailure ClaimService",
            "identity": "QUERY_NAME SinkIdentity",
            "job": "QUERY_ID TOKEN run_job writing_in_plan",
            "job_context": "ALL_ROWS REPORT Report pickled unpickled",
            "options": "ARGUMENTS LEDGER_TOPIC SinkOptions TRANSACTION_TIMEOUT_MS checked_options",
            "preflight": "BrokerLimits check_spark prepare_cluster producer_settings "
            "run_on_own_thread",
            "query": "SinkWriter",
            "routing": "TARGET TopicLayout",
            "run": "QueryStopped StreamRun",
            "task": "MadeRows TaskFunction",
            "topics": "SinkTopics",
        },
    )
