"""Commands whose standard streams are closed, full, or hung up: told in a sentence, never a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Final

import pytest

import onceflow
from onceflow.blocking import Admin, Producer
from onceflow.client.model import TopicPartition

SECONDS: Final = 120.0
CLOSED: Final = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")


@pytest.fixture(scope="module")
def broker() -> Iterator[onceflow.Broker]:
    with onceflow.Broker() as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("jobs", partitions=1)
        with Producer(broker.bootstrap, {"transactional.id": "t"}) as producer:
            with producer.transaction():
                for number in range(2000):
                    producer.send("jobs", b"%d" % number)
        yield broker


def shell(
    line: str, bootstrap: str = "127.0.0.1:1", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a line of sh in which `onceflow` is the command; its status is that of `onceflow`."""
    command = f"{quote(sys.executable)} -m onceflow"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("onceflow", command, 1)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "ONCEFLOW_BOOTSTRAP": bootstrap, **environment},
    )


def without_crash(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    for word in ("Traceback", "Assertion", "Exception ignored"):
        assert word not in done.stderr
    return done


@pytest.mark.parametrize("closed", CLOSED)
def test_a_broker_serves_with_closed_streams(closed: str, tmp_path: Path) -> None:
    """It is stopped by the end of its parent, which has seen it open its directory."""
    wait = f"until [ -e {tmp_path}/data/checkpoint ]; do kill -0 $! || exit 9; done"
    line = (
        f"onceflow serve --data-dir {tmp_path}/data --listen 127.0.0.1:0 {closed} & "
        f"{wait}; kill -TERM $!; wait $!"
    )
    done = without_crash(shell(line))
    assert done.returncode in (0, 143)  # 143: before it was ready to be stopped


@pytest.mark.parametrize("closed", CLOSED)
def test_an_embedded_broker_lives_in_a_program_with_closed_streams(closed: str) -> None:
    program = (
        "import onceflow; from onceflow.blocking import Admin\n"
        "with onceflow.Broker() as broker, Admin(broker.bootstrap) as admin:\n"
        "    admin.create_topic('x')\n"
    )
    done = subprocess.run(
        ["bash", "-c", f"{quote(sys.executable)} -c {quote(program)} {closed}"],
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0
