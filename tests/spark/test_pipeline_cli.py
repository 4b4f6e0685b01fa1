"""`onceflow run` as a person runs it: an example with a broker of its own, stopped by Ctrl-C and by
SIGTERM, and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from tests.interop.conftest import cannot_test
from tests.spark.pipeline_world import example, read_all
from tests.spark.session import SparkMissing, require_spark

PATIENCE_S = 240.0


class Run:
    """A process of `onceflow run --json`, in a process group as a terminal makes one."""

    def __init__(self, path: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "onceflow", "run", str(path), "--json", *arguments]
        environment = {**os.environ, "JAVA_HOME": str(require_spark().resolve().parents[1])}
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._lines: Queue[dict[str, Any] | None] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def next(self) -> dict[str, Any]:
        line = self._lines.get(timeout=PATIENCE_S)
        assert line is not None, self._process.communicate()[1]
        return line

    def until_done_with(self, records: int) -> dict[str, Any]:
        while True:
            line = self.next()
            if line["written"] + line["dead_letters"] >= records:
                return line

    def signal(self, number: int, *, to_all: bool) -> None:
        if to_all:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def end(self) -> tuple[int, dict[str, Any]]:
        """How it ended, and the last that it said."""
        last: dict[str, Any] = {}
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            last = line
        return self._process.wait(PATIENCE_S), last

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def running(path: Path) -> Iterator[tuple[Run, str]]:
    run = Run(path, "--master", "local[2]")
    try:
        begun = run.next()
        assert begun["state"] == "started"
        yield run, begun["bootstrap"]
    finally:
        run.close()


def test_a_pipeline_is_stopped_and_started_again(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    try:
        require_spark()
    except SparkMissing as error:
        cannot_test(request, "spark", str(error))
    path, generate = example("order_totals", tmp_path)
    text = path.read_text().replace("[broker]\n", '[broker]\nlisten = "127.0.0.1:0"\n')
    # The second half of the compiler and a collector with threads pay off after minutes only.
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    path.write_text(f'{text}\n[settings]\nspark.driver.extraJavaOptions = "{quick}"\n')
    with running(path) as (run, bootstrap):
        asyncio.run(generate.send(bootstrap, 300))
        line = run.until_done_with(300)
        assert (line["read"], line["lag"], line["dead_letters"]) == (300, 0, 12)
        run.signal(signal.SIGINT, to_all=True)
        status, last = run.end()
        assert (status, last["state"], last["written"]) == (0, "ended", 288)
    host, port = bootstrap.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=10).close()
    with running(path) as (run, bootstrap):
        asyncio.run(generate.send(bootstrap, 100))
        run.until_done_with(100)
        found = read_all(bootstrap, "order-totals")
        numbers = sorted(json.loads(each.value or b"")["order_id"] for each in found)
        good = [number for number in range(300) if number % 100 not in (13, 37, 61, 89)]
        assert numbers == sorted(good + [number for number in good if number < 100])
        run.signal(signal.SIGTERM, to_all=False)
        assert run.end()[0] == 0
    assert (tmp_path / "order_totals/state/order-totals.log").exists()
