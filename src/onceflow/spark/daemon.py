"""The daemon that Spark forks its Python workers off, with what they need loaded before the fork.

A worker then starts in milliseconds and shares compiled kernels with the others; and the garbage
collection that follows every task does not go through them again (`gc.freeze`). It kills its own
workers only, whatever pid the JVM names. Chosen by `spark.python.daemon.module`.
"""

from __future__ import annotations

import gc
import os
from typing import Any

from pyspark import daemon


def preload() -> None:
    """Everything that tasks of source and sink use. Nothing here may start a thread or open a
    connection: neither survives a fork."""
    import pyarrow as pa

    from onceflow.client.consumer import fetched
    from onceflow.client.worker import reader as worker_reader, writer as worker
    from onceflow.records import decode, encode_all, iter_stored, partitions_for_keys
    from onceflow.spark.pipeline import arrow_task as arrow_pipeline_task
    from onceflow.spark.sink import task as writing
    from onceflow.spark.source import task as reading

    row = pa.record_batch({"value": pa.array([b"x"])})
    (batch,) = encode_all(row, max_batch_bytes=1 << 10, now_ms=0)
    decode(list(iter_stored(batch.buffer)))
    partitions_for_keys(pa.array([b"x"]), 2)
    del fetched, worker, worker_reader, reading, writing, arrow_pipeline_task


class OwnWorkersOnly:
    """`os` as the daemon sees it. Spark has it kill workers that may have ended long ago, and by
    then their pids can belong to anybody: to a thread of the very JVM that asks, which dies."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @staticmethod
    def kill(pid: int, number: int) -> None:
        if pid > 0:
            # Raises ChildProcessError, which the daemon takes for "has ended", for any other pid.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.kill(pid, number)


def main() -> None:
    preload()
    gc.collect()
    gc.freeze()
    vars(daemon)["os"] = OwnWorkersOnly()
    manager: Any = daemon.manager
    manager()


if __name__ == "__main__":
    main()
