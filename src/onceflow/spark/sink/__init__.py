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
    from onceflow.spark.sink.identity import QUERY_NAME as QUERY_NAME, SinkIdentity as SinkIdentity
    from onceflow.spark.sink.job import (
        secrets_of as secrets_of,
        writing_in_plan as writing_in_plan,
    )
    from onceflow.spark.sink.options import (
        ARGUMENTS as ARGUMENTS,
        LEDGER_TOPIC as LEDGER_TOPIC,
        TRANSACTION_TIMEOUT_MS as TRANSACTION_TIMEOUT_MS,
        SinkOptions as SinkOptions,
        checked_options as checked_options,
    )
    from onceflow.spark.sink.preflight import (
        check_spark as check_spark,
        producer_settings as producer_settings,
        run_on_own_thread as run_on_own_thread,
    )
    from onceflow.spark.sink.query import SinkWriter as SinkWriter
    from onceflow.spark.sink.routing import TARGET as TARGET, TopicLayout as TopicLayout
    from onceflow.spark.sink.run import (
        SinkTotals as SinkTotals,
        StreamSink as StreamSink,
        prepare_sink as prepare_sink,
    )
    from onceflow.spark.sink.task import (
        MadeRows as MadeRows,
        write_made_rows as write_made_rows,
    )
    from onceflow.spark.sink.task_plan import (
        REPORT as REPORT,
        TaskSecrets as TaskSecrets,
        pickled as pickled,
        unpickled as unpickled,
    )
    from onceflow.spark.sink.topics import count_partitions as count_partitions
else:
    __getattr__ = door(
        __name__,
        {
            "api": "starting_offsets write write_stream",
            "identity": "QUERY_NAME SinkIdentity",
            "job": "secrets_of writing_in_plan",
            "options": "ARGUMENTS LEDGER_TOPIC SinkOptions TRANSACTION_TIMEOUT_MS checked_options",
            "preflight": "check_spark producer_settings run_on_own_thread",
            "query": "SinkWriter",
            "routing": "TARGET TopicLayout",
            "run": "SinkTotals StreamSink prepare_sink",
            "task": "MadeRows write_made_rows",
            "task_plan": "REPORT TaskSecrets pickled unpickled",
            "topics": "count_partitions",
        },
    )
