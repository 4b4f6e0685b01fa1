"""A worker process: writes under a transaction that it is given as JSON, and says what it wrote.

Standard input is a JSON object: the `transaction`, and for each partition the values to write. It
prints one line of JSON: for each partition what was written, or the name of the error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from onceflow.client.errors.requests import ClientError
from onceflow.client.transactions.handoff import OpenTransaction
from onceflow.client.types import TopicPartition
from onceflow.client.worker.writer import Writer

Rows = Mapping[TopicPartition, Sequence[str]]


def columns(values: Sequence[str]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([each.encode() for each in values], pa.binary())})


def start(transaction: OpenTransaction, rows: Rows) -> subprocess.Popen[str]:
    """A process that writes these rows."""
    task = {
        "transaction": transaction.only(rows).to_json(),
        "rows": [[*place, list(values)] for place, values in rows.items()],
    }
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(task))
    process.stdin.close()
    process.stdin = None
    return process


def result(process: subprocess.Popen[str]) -> Any:
    """What it printed, when it has ended."""
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(told)


def main() -> None:
    task = json.load(sys.stdin)
    with Writer(OpenTransaction.from_json(task["transaction"])) as writer:
        try:
            for topic, partition, values in task["rows"]:
                writer.write(topic, partition, columns(values))
            found: Any = [list(each) for each in writer.flush()]
        except ClientError as error:
            found = type(error).__name__
    print(json.dumps(found))


if __name__ == "__main__":
    main()
