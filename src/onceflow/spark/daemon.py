"""The daemon that Spark forks its Python workers off, with what they need loaded before the fork.

A worker then starts in milliseconds and shares compiled kernels with the others; and the garbage
collection that follows every task does not go through them again (`gc.freeze`). Memory that one
piece of rows has used is there for the next one. It kills its own workers only, whatever pid the
JVM names. Chosen by `spark.python.daemon.module`.
"""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Any, Final

from pyspark import daemon

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_LARGEST_FROM_HEAP: Final = 32 << 20
"""The most that glibc allows."""
_KEPT_BYTES: Final = 64 << 20


def keep_memory() -> bool:
    """Has glibc give memory back to the system only beyond so much. Pieces of rows are megabytes,
    which it would give back after each and then get anew, page by page: a fifth of the CPU time
    of tasks that pack rows and write them. Whether there is a glibc that does so."""
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None:
        return False
    given = ((_MMAP_THRESHOLD, _LARGEST_FROM_HEAP), (_TRIM_THRESHOLD, _KEPT_BYTES))
    return all(option(each, value) for each, value in given)


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
    keep_memory()
    preload()
    gc.collect()
    gc.freeze()
    vars(daemon)["os"] = OwnWorkersOnly()
    manager: Any = daemon.manager
    manager()


if __name__ == "__main__":
    main()
