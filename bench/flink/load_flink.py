"""A process with one JVM of Flink, which runs the jobs it is told to, one after the other.

    PYTHON -m bench.flink.load_flink --directory PATH

Runs in the environment that `tools.flink` makes, and needs nothing else. Each line of its input is
a run in JSON: `query`, one of `JOBS`, and the fields of `Job`. Each is answered by a line with the
CPU time of this process and all below it, JVM and workers; the first line comes when the JVM is
there. It ends when its input does.

Both jobs copy a topic, keys and values as they are but for what a function does, exactly once, and
take what is there when they start. What Flink can be told to make that faster, it is told: large
batches to the broker, and large ones to Python.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyflink.common import Configuration
from pyflink.java_gateway import get_gateway
from pyflink.table import DataTypes, EnvironmentSettings, TableEnvironment
from pyflink.table.udf import udf

from bench.common.cpu_time import cpu_seconds
from tools.java import find_java

PARALLELISM: Final = 2
ROWS_TO_PYTHON: Final = 10_000
TRANSACTION_MS_MAX: Final = 900_000
"""What a broker allows; Flink would ask for an hour, and start again and again."""
COLUMNS: Final = "(k BYTES, v BYTES)"
FORMAT: Final = {
    "connector": "kafka",
    "key.format": "raw",
    "key.fields": "k",
    "value.format": "raw",
    "value.fields-include": "EXCEPT_KEY",
}


class Job(NamedTuple):
    """One run."""

    name: str
    bootstrap: str
    source: str
    sink: str
    checkpoint_ms: int


def settings(directory: Path, job: Job) -> dict[str, str]:
    return {
        "parallelism.default": str(PARALLELISM),
        "pipeline.name": job.name,
        "pipeline.object-reuse": "true",
        "execution.checkpointing.interval": f"{job.checkpoint_ms} ms",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        "io.tmp.dirs": str(directory),
        "python.client.executable": sys.executable,
        "python.executable": sys.executable,
        "python.execution-mode": "process",
        "python.fn-execution.arrow.batch.size": str(ROWS_TO_PYTHON),
        "python.fn-execution.bundle.size": str(ROWS_TO_PYTHON),
        # Else a job that cannot run is started again for ever, silently.
        "restart-strategy.type": "none",
    }


def source(job: Job) -> dict[str, str]:
    return FORMAT | {
        "topic": job.source,
        "properties.bootstrap.servers": job.bootstrap,
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
    }


def sink(job: Job) -> dict[str, str]:
    return FORMAT | {
        "topic": job.sink,
        "properties.bootstrap.servers": job.bootstrap,
        "properties.batch.size": str(256 << 10),
        "properties.linger.ms": "5",
        "properties.transaction.timeout.ms": str(TRANSACTION_MS_MAX),
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": job.name,
    }


def upper_case() -> Any:
    """A function over columns: Flink runs it several times faster than one over values."""

    def upper(values: Any) -> Any:
        return values.map(bytes.upper)

    return udf(upper, result_type=DataTypes.BYTES(), func_type="pandas")


JOBS: Final = {
    "sql": "INSERT INTO sink SELECT k, v FROM source",
    "udf": "INSERT INTO sink SELECT k, upper_case(v) FROM source",
}


def create_table(name: str, options: dict[str, str]) -> str:
    given = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} {COLUMNS} WITH ({given})"


def run(directory: Path, asked: dict[str, Any]) -> dict[str, float]:
    statement = JOBS[asked.pop("query")]
    job = Job(**asked)
    begin, cpu_begin = time.perf_counter(), cpu_seconds()
    configuration = Configuration()
    for key, value in settings(directory, job).items():
        configuration.set_string(key, value)
    chosen = EnvironmentSettings.new_instance().with_configuration(configuration)
    tables = TableEnvironment.create(chosen.in_streaming_mode().build())
    tables.execute_sql(create_table("source", source(job)))
    tables.execute_sql(create_table("sink", sink(job)))
    tables.create_temporary_function("upper_case", upper_case())
    tables.execute_sql(statement).wait()
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": cpu_seconds() - cpu_begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs jobs of Flink.")
    parser.add_argument("--directory", type=Path, required=True)
    directory: Path = parser.parse_args().directory.resolve()
    os.environ["FLINK_LOG_DIR"] = str(directory)
    os.environ["JVM_ARGS"] = f"-Djava.io.tmpdir={directory}"
    if (java := find_java()) is not None:
        os.environ["JAVA_HOME"] = str(java.parent.parent)
    # What Flink and its workers print goes elsewhere: this is for answers.
    with os.fdopen(os.dup(1), "w") as answers, (directory / "output").open("wb") as output:
        os.dup2(output.fileno(), 1)
        begin = time.perf_counter()
        get_gateway()
        print(json.dumps({"seconds": time.perf_counter() - begin}), file=answers, flush=True)
        for line in sys.stdin:
            try:
                answer: dict[str, Any] = run(directory, json.loads(line))
            except Exception as error:  # whatever it is, the bench goes on to the next
                answer = {"error": f"{type(error).__name__}: {error}"[-2000:]}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
