"""The sink of a pipeline: that of `onceflow.spark.sink`, under the names of the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceflow.spark.pipeline.plan import PipelinePlan
from onceflow.spark.sink import (
    LEDGER_TOPIC,
    TRANSACTION_TIMEOUT_MS,
    SinkIdentity,
    SinkWriter,
    checked_options,
    prepare_sink,
    writing_in_plan,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIMEOUT: Final = "transaction.timeout.ms"


def start_sink(frame: DataFrame, plan: PipelinePlan, bootstrap: str) -> SinkWriter:
    """Raises `SinkRefused` with all that is wrong."""
    settings, timeout_ms = sink_settings(plan)
    options = checked_options(
        frame,
        sink_identity(plan),
        is_stream=True,
        topic=plan.sink.topic,
        dead_letter_topic=plan.dead_letters,
        narrow=False,
        continue_from_group=False,
        bootstrap=bootstrap,
        timeout_ms=timeout_ms,
        settings=settings,
    )
    sink = prepare_sink(frame.sparkSession, options, is_raise_final=True)
    return SinkWriter(writing_in_plan(frame, options), sink)


def sink_identity(plan: PipelinePlan) -> SinkIdentity:
    return SinkIdentity.of_query(plan.name, None, LEDGER_TOPIC)


def sink_settings(plan: PipelinePlan) -> tuple[dict[str, str], int]:
    """Those of the producer, and the timeout of its transactions."""
    settings = dict(plan.producer_settings)
    return settings, int(settings.pop(_TIMEOUT, TRANSACTION_TIMEOUT_MS))
