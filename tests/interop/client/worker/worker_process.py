"""Worker processes: each writes under a transaction that it is given, and says what it wrote.

They are forked off one process, which has loaded what they need, as those of Spark are: loading it
takes longer than all they do. What is sent to it by one connection is the `transaction`, and for
each partition the values to write; what comes back is for each partition what was written, or the
name of the error.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from socketserver import ForkingMixIn, StreamRequestHandler, UnixStreamServer
from typing import Any, Final

import pyarrow as pa

from onceflow.client.errors.requests import ClientError
from onceflow.client.transactions.handoff import OpenTransaction
from onceflow.client.worker.writer import BlockingWriter
from onceflow.records import encode_all
from onceflow.types import TopicPartition

Rows = Mapping[TopicPartition, Sequence[str]]
PATIENCE_S: Final = 60.0


def columns(values: Sequence[str]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([each.encode() for each in values], pa.binary())})


def start(transaction: OpenTransaction, rows: Rows) -> socket.socket:
    """A process that writes these rows."""
    task = {
        "transaction": transaction.only(rows).to_json(),
        "rows": [[*place, list(values)] for place, values in rows.items()],
    }
    process = socket.socket(socket.AF_UNIX)
    process.settimeout(PATIENCE_S)
    process.connect(str(_parent()))
    process.sendall(json.dumps(task).encode())
    process.shutdown(socket.SHUT_WR)
    return process


def result(process: socket.socket) -> Any:
    """What it said, when it has ended."""
    with process, process.makefile("rb") as said:
        return json.load(said)


@cache
def _parent() -> Path:
    """The address of the process that they are forked off, which ends with this one."""
    scratch = tempfile.TemporaryDirectory()
    address = Path(scratch.name) / "socket"
    parent = subprocess.Popen([sys.executable, "-m", __name__, address], stdout=subprocess.PIPE)

    def end() -> None:
        with parent:
            parent.kill()
        scratch.cleanup()

    atexit.register(end)
    assert parent.stdout is not None
    assert parent.stdout.readline(), "it did not start"
    return address


class Worker(StreamRequestHandler):
    """In a process of its own."""

    def handle(self) -> None:
        self.wfile.write(json.dumps(work(json.load(self.rfile))).encode())


def work(task: dict[str, Any]) -> Any:
    with BlockingWriter(OpenTransaction.from_json(task["transaction"])) as writer:
        try:
            for topic, partition, values in task["rows"]:
                writer.write(topic, partition, columns(values))
            return [list(each) for each in writer.flush()]
        except ClientError as error:
            return type(error).__name__


class Forking(ForkingMixIn, UnixStreamServer):
    timeout = 1.0


def main(address: str) -> None:
    owner = os.getppid()
    list(encode_all(columns(["x"]), max_batch_bytes=1 << 10, now_ms=0))  # loads what is compiled
    with Forking(address, Worker) as server:
        print("ready", flush=True)
        while os.getppid() == owner:
            server.handle_request()


if __name__ == "__main__":
    main(sys.argv[1])
