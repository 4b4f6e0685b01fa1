"""A process with one Spark session, which runs the queries it is told to, one after the other.

    python -m bench.spark.load_spark --directory PATH

Each line of its input is a run in JSON: `query`, and the fields of `Job`, the checkpoint left out.
Each is answered by a line with the batches and the CPU time of this process and all below it, JVM
and workers; the first line comes when Spark is there. It ends when its input does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.common.cpu_time import cpu_seconds
from bench.spark.queries import QUERIES, Job
from onceflow.spark.session.session import make_session, session_settings
from tools.spark_jars import ensure_spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CORES: Final = 2
MASTER: Final = f"local[{CORES}]"
POLL_S: Final = 0.02
PROGRESS_KEPT: Final = 1000


def start_session(directory: Path) -> SparkSession:
    """With the settings of a pipeline, for all engines alike."""
    settings = session_settings(
        MASTER,
        str(directory),
        {
            "spark.jars": ",".join(map(str, sorted(ensure_spark_jars().glob("*.jar")))),
            "spark.local.dir": str(directory / "local"),
            "spark.log.level": "ERROR",
            "spark.sql.streaming.numRecentProgressUpdates": str(PROGRESS_KEPT),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        },
        cores=CORES,
        has_pandas=find_spec("pandas") is not None,
    )
    return make_session("bench", MASTER, settings, directory / "spark.log")


def run(session: SparkSession, directory: Path, asked: dict[str, Any]) -> dict[str, Any]:
    query_name = asked.pop("query")
    checkpoint = directory / "checkpoints" / asked["name"]
    begin, cpu_begin = time.perf_counter(), cpu_seconds()
    query = QUERIES[query_name](session, Job(**asked, checkpoint=str(checkpoint)))
    cpu_first, batches_before = _after_first_batch(query)
    query.awaitTermination()
    cpu_end = cpu_seconds()
    seconds = time.perf_counter() - begin
    shutil.rmtree(checkpoint)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_end - cpu_begin,
        "cpu_seconds_later": cpu_end - cpu_first,
        "batches_before": batches_before,
        "batches": [_batch(json.loads(each.json)) for each in query.recentProgress],
    }


def _after_first_batch(query: StreamingQuery) -> tuple[float, int]:
    """The CPU time when the first batch is done, and how many are done by then: on a busy machine
    this may come late."""
    while query.isActive and query.lastProgress is None:
        time.sleep(POLL_S)
    found = cpu_seconds()
    return found, len(query.recentProgress)


def _batch(progress: dict[str, Any]) -> dict[str, Any]:
    start = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return {
        "start": start,
        "end": start + progress["durationMs"]["triggerExecution"] / 1000,
        "durations_ms": progress["durationMs"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs queries of Spark.")
    parser.add_argument("--directory", type=Path, required=True)
    directory: Path = parser.parse_args().directory
    # What Spark and its workers print goes elsewhere: this is for answers.
    with os.fdopen(os.dup(1), "w") as answers, (directory / "output").open("wb") as output:
        os.dup2(output.fileno(), 1)
        begin = time.perf_counter()
        session = start_session(directory)
        print(json.dumps({"seconds": time.perf_counter() - begin}), file=answers, flush=True)
        for line in sys.stdin:
            try:
                answer = run(session, directory, json.loads(line))
            except Exception as error:  # whatever it is, the bench goes on to the next
                answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
            print(json.dumps(answer), file=answers, flush=True)
        session.stop()


if __name__ == "__main__":
    main()
